#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/files.h"
#include "staging/cache/store.h"
#include "staging/pack/reader.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::content_of;
using staging_test::flip_byte;
using staging_test::in_child;
using staging_test::ThrowsErrorWith;
using testing::HasSubstr;
using testing::IsEmpty;

/// Moves this process into a mount namespace of its own, without root through a user namespace.
bool own_mounts() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  if (uid != 0) {
    write_all(open_file("/proc/self/setgroups", O_WRONLY).get(), "deny", "setgroups");
    write_all(open_file("/proc/self/uid_map", O_WRONLY).get(), fmt::format("{0} {0} 1\n", uid), "uid_map");
    write_all(open_file("/proc/self/gid_map", O_WRONLY).get(), fmt::format("{0} {0} 1\n", gid), "gid_map");
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

class TransferPut : public staging_test::StagingTest {
 protected:
  PutResult put_one(const fs::path& source, Verify verify = Verify::quick) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.verify = verify;
    return put({source.string()}, options).at(0);
  }
  std::vector<std::string> objects() const { return FileSystem::real().list(folder_ / "cache/objects"); }
};

TEST_F(TransferPut, CopiesAPackOnceAndFindsItTheNextTime) {
  const fs::path pack = make_large_pack("p", 100);
  const PutResult cold = put_one(pack);
  EXPECT_FALSE(cold.hit);
  EXPECT_EQ(content_of(cold.path), content_of(pack));
  EXPECT_EQ(cold.from_source, cold.bytes);
  EXPECT_EQ(cold.from_peers, 0U);
  const PutResult warm = put_one(pack);
  EXPECT_TRUE(warm.hit);
  EXPECT_EQ(warm.path, cold.path);
  EXPECT_EQ(warm.bytes, cold.bytes);
  EXPECT_EQ(warm.from_source, 0U);
  EXPECT_TRUE(put_one(pack, Verify::full).hit);
  EXPECT_TRUE(put_one(pack, Verify::off).hit);
  EXPECT_EQ(pack::open(warm.path)->fingerprint(), pack::open(pack)->fingerprint());
}

TEST_F(TransferPut, OneShardBecomesAPackOfItsOwn) {
  const fs::path pack = make_large_pack("p", 100);
  const PutResult one = put_one(pack / "shard-000002.tar");
  EXPECT_EQ(one.path.filename(), "shard-000002.tar");
  EXPECT_EQ(staging_test::read(one.path), staging_test::read(pack / "shard-000002.tar"));
  const auto local = pack::open(one.path);
  local->verify();
  EXPECT_EQ(local->fingerprint(), pack::open(pack / "shard-000002.tar")->fingerprint());
  EXPECT_EQ(pack::open(one.path.parent_path())->size(), local->size());
  const PutResult some = put_one(pack / "shard-{000000..000001}.tar");
  pack::open(some.path)->verify();
  EXPECT_LT(some.bytes, put_one(pack).bytes);
}

TEST_F(TransferPut, APackThatWasMadeAnewIsCopiedAnew) {
  const PutResult old = put_one(make_pack("p", {{"a", "old"}}));
  fs::remove_all(folder_ / "p");
  const PutResult fresh = put_one(make_pack("p", {{"a", "new"}}));
  EXPECT_FALSE(fresh.hit);
  EXPECT_NE(fresh.path, old.path);
}

TEST_F(TransferPut, ADamagedSourceIsRefusedAndNothingStays) {
  const fs::path pack = make_large_pack("p", 100);
  flip_byte(pack / "shard-000003.tar", 4000);
  EXPECT_THAT([&] { put_one(pack); },
              ThrowsErrorWith((pack / "shard-000003.tar").string(), "does not match its index"));
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(TransferPut, ADamagedIndexIsRefusedUnderItsOwnName) {
  const fs::path pack = make_large_pack("p", 100);
  flip_byte(pack / "index.lockstep", 200);
  EXPECT_THAT([&] { put_one(pack); }, ThrowsErrorWith((pack / "index.lockstep").string(), "checksum"));
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(TransferPut, ATruncatedSourceIsRefusedWithItsSample) {
  const fs::path pack = make_large_pack("p", 100);
  fs::resize_file(pack / "shard-000001.tar", 20000);
  EXPECT_THAT([&] { put_one(pack); },
              ThrowsErrorWith((pack / "shard-000001.tar").string(), "truncated", "sample"));
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(TransferPut, ADamagedCopyIsFoundByFullVerificationAndCopiedAgain) {
  const fs::path pack = make_large_pack("p", 100);
  const PutResult cold = put_one(pack);
  flip_byte(cold.path / "shard-000004.tar", 5000);
  const PutResult again = put_one(pack, Verify::full);
  EXPECT_FALSE(again.hit);
  EXPECT_THAT(again.note, HasSubstr("shard-000004.tar"));
  EXPECT_EQ(content_of(again.path), content_of(pack));
}

TEST_F(TransferPut, AShortenedCopyAndADamagedIndexAreFoundByQuickVerification) {
  const fs::path pack = make_large_pack("p", 100);
  const PutResult cold = put_one(pack);
  fs::permissions(cold.path / "shard-000002.tar", fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(cold.path / "shard-000002.tar", 512);
  EXPECT_FALSE(put_one(pack).hit);
  flip_byte(cold.path / "index.lockstep", 100);
  EXPECT_FALSE(put_one(pack).hit);
  EXPECT_EQ(content_of(cold.path), content_of(pack));
}

TEST_F(TransferPut, QuickVerificationReadsSamples) {
  const fs::path pack = make_pack("p", {{"a", std::string(3000, 'x')}});
  const PutResult cold = put_one(pack);
  flip_byte(cold.path / "shard-000000.tar", 1000);  // in the only sample, so that any choice finds it
  const PutResult again = put_one(pack);
  EXPECT_FALSE(again.hit);
  EXPECT_THAT(again.note, HasSubstr("sample 0 (a)"));
}

TEST_F(TransferPut, ASourceThatChangesWhileItIsCopiedIsRefused) {
  const fs::path pack = make_large_pack("p", 100);
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  options.threads = 1;
  int calls = 0;
  options.progress = [&](const std::string&, std::uint64_t, std::uint64_t) {
    if (++calls == 1)
      fs::last_write_time(pack / "shard-000000.tar",
                          fs::file_time_type::clock::now() + std::chrono::hours(1));
  };
  EXPECT_THAT([&] { put({pack.string()}, options); },
              ThrowsErrorWith((pack / "shard-000000.tar").string(), "changed while it was copied"));
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(TransferPut, APackThatIsReplacedWhileItIsCopiedIsRefused) {
  const fs::path pack = make_large_pack("p", 100);
  const std::string index = staging_test::read(pack / "index.lockstep");
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  options.threads = 1;
  options.progress = [&](const std::string&, std::uint64_t done, std::uint64_t total) {
    if (done == total) write_file_atomically(pack / "index.lockstep", index);
  };
  EXPECT_THAT([&] { put({pack.string()}, options); },
              ThrowsErrorWith(pack.string(), "changed while it was copied"));
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(TransferPut, AnUnreadableSourceIsNamedForAnOrdinaryUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const fs::path pack = make_large_pack("p", 50);
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(pack / "shard-000001.tar", fs::perms::owner_read);
  const auto as_user = [&](const std::function<void()>& work) {
    return in_child([&] {
      if (::setgid(4242) != 0 || ::setuid(4242) != 0) fail_errno("cannot become another user");
      work();
    });
  };
  EXPECT_EQ(as_user([&] {
              EXPECT_THAT([&] { put_one(pack); },
                          ThrowsErrorWith("cannot open " + (pack / "shard-000001.tar").string(),
                                          "Permission denied"));
              if (HasFailure() || !objects().empty()) fail("not as expected");
            }),
            0);
  fs::permissions(pack / "shard-000001.tar", fs::perms::others_read, fs::perm_options::add);
  EXPECT_EQ(as_user([&] {
              const PutResult cold = put_one(pack);
              flip_byte(cold.path / "shard-000000.tar", 600);
              // Replacing a read-only object is work for an ordinary user too.
              const PutResult again = put_one(pack, Verify::full);
              if (cold.hit || again.hit || content_of(again.path) != content_of(pack))
                fail("not as expected");
            }),
            0);
}

TEST_F(TransferPut, AFullDiskIsOneCleanErrorAndNothingStays) {
  const fs::path pack = make_large_pack("p", 600);
  fs::create_directory(folder_ / "cache");
  constexpr int kNoNamespace = 77;
  const int code = in_child([&] {
    if (!own_mounts()) ::_exit(kNoNamespace);
    if (::mount("tmpfs", (folder_ / "cache").c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0)
      ::_exit(kNoNamespace);
    EXPECT_THAT([&] { put_one(pack); }, ThrowsErrorWith(pack.string(), "needs", "free; make room"));
    if (HasFailure() || !objects().empty()) fail("not as expected");
    put_one(pack / "shard-000000.tar");
  });
  if (code == kNoNamespace) GTEST_SKIP() << "needs a mount namespace";
  EXPECT_EQ(code, 0);
}

TEST_F(TransferPut, SeveralSourcesAreAllPutOrNamed) {
  const fs::path p = make_pack("p", {{"a", "x"}});
  const fs::path q = make_pack("q", {{"a", "y"}});
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  EXPECT_EQ(put({p.string(), q.string()}, options).size(), 2U);
  EXPECT_THAT(
      [&] {
        put({p.string(), (folder_ / "none").string()}, options);
      },
      ThrowsErrorWith("none: No such file"));
}

TEST(TransferVerify, ABadValueIsNamedWithTheGoodOnes) {
  EXPECT_EQ(parse_verify("full"), Verify::full);
  EXPECT_THAT([] { parse_verify("some"); }, ThrowsErrorWith("'some'", "quick, full and off"));
}

}  // namespace
}  // namespace lockstep::transfer
