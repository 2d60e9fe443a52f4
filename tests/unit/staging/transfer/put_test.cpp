#include "staging/transfer/put.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "common/files.h"
#include "staging/cache/store.h"
#include "staging/pack/reader.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::HasSubstr;
using testing::IsEmpty;

class TransferPut : public staging_test::StagingTest {
 protected:
  PutOptions options(Verify verify = Verify::quick) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.verify = verify;
    options.sizes.chunk_bytes = kChunk;
    return options;
  }
  PutResult put_one(const fs::path& source, Verify verify = Verify::quick) const {
    return put({source.string()}, options(verify)).at(0);
  }
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

TEST_F(TransferPut, OneShardBecomesASeparatePack) {
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

TEST_F(TransferPut, ADamagedSourceIsRefusedAndNothingStays) {
  const fs::path pack = make_large_pack("p", 100);
  flip_byte(pack / "shard-000003.tar", 4000);
  EXPECT_THAT([&] { put_one(pack); }, ThrowsErrorWith((pack / "shard-000003.tar").string()));
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

TEST_F(TransferPut, AShortenedCopyIsFoundByQuickVerification) {
  const fs::path pack = make_large_pack("p", 100);
  const PutResult cold = put_one(pack);
  fs::permissions(cold.path / "shard-000002.tar", fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(cold.path / "shard-000002.tar", 512);
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

TEST_F(TransferPut, PlainFoldersAndFilesAreCopiedAndVerifiedByTheirObject) {
  write("d/empty", "");
  write("d/sub/a", std::string(50'000, 'a'));
  write("d/sub/deeper/b", "b");
  const PutResult cold = put_one(folder_ / "d");
  EXPECT_EQ(content_of(cold.path), content_of(folder_ / "d"));
  EXPECT_EQ(cold.bytes, 50'001U);
  EXPECT_EQ(cold.from_source, 50'001U);
  EXPECT_TRUE(put_one(folder_ / "d", Verify::full).hit);
  flip_byte(cold.path / "sub/a", 40'000);
  const PutResult again = put_one(folder_ / "d", Verify::full);
  EXPECT_FALSE(again.hit);
  EXPECT_THAT(again.note, HasSubstr("sub/a is damaged"));
  EXPECT_EQ(content_of(again.path), content_of(folder_ / "d"));
  const PutResult one = put_one(folder_ / "d/sub/a");
  EXPECT_EQ(one.path.filename(), "a");
  EXPECT_EQ(one.bytes, 50'000U);
  const PutResult some = put_one(folder_ / "d/sub/a*");
  EXPECT_EQ(some.bytes, 50'000U);
}

TEST_F(TransferPut, AllCopiesTogetherKeepTheBandwidthLimit) {
  write("a/x", std::string(200'000, 'a'));
  write("b/x", std::string(200'000, 'b'));
  PutOptions limited = options();
  limited.bandwidth = 1'000'000;
  const auto begin = std::chrono::steady_clock::now();
  std::thread other([&] { put({(folder_ / "a").string()}, limited); });
  put({(folder_ / "b").string()}, limited);
  other.join();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(390));
}

TEST_F(TransferPut, APackThatIsReplacedWhileItIsCopiedIsRefused) {
  const fs::path pack = make_large_pack("p", 100);
  const std::string index = staging_test::read(pack / "index.lockstep");
  PutOptions watching = options();
  watching.threads = 1;
  watching.on.progress = [&](const std::string&, const PutProgress& now) {
    if (now.done == now.total) write_file_atomically(pack / "index.lockstep", index);
  };
  EXPECT_THAT([&] { put({pack.string()}, watching); }, ThrowsErrorWith(pack.string(), "changed"));
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
              // An ordinary user must also be able to replace a read-only object.
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
    EXPECT_THAT([&] { put_one(pack); }, ThrowsErrorWith(pack.string(), "needs", "free; free space there"));
    if (HasFailure() || !objects().empty()) fail("not as expected");
    put_one(pack / "shard-000000.tar");
  });
  if (code == kNoNamespace) GTEST_SKIP() << "needs a mount namespace";
  EXPECT_EQ(code, 0);
}

TEST_F(TransferPut, AFolderThatHoldsTheCacheItselfIsRefused) {
  write("data/a", "x");
  PutOptions inside = options();
  inside.cache_dir = folder_ / "data/cache";
  const std::string data = (folder_ / "data").string();
  EXPECT_THAT([&] { put({data}, inside); }, ThrowsErrorWith(data, "data/cache lies in it"));
  EXPECT_NO_THROW(put({data + "/a"}, inside));
  EXPECT_THAT([&] { put({inside.cache_dir.string()}, inside); }, ThrowsErrorWith("lies in it"));
}

TEST_F(TransferPut, AQuotaThatIsTooSmallForTheIndexSaysThatItIsTheIndex) {
  const fs::path pack = make_large_pack("p", 100);
  PutOptions little = options();
  little.limits.quota = 100;
  EXPECT_THAT([&] { put({pack.string()}, little); }, ThrowsErrorWith("(for its index alone) needs"));
  little.limits.quota = 100'000;
  EXPECT_THAT([&] { put({pack.string()}, little); },
              testing::Throws<Error>(testing::Property(
                  &Error::what, testing::AllOf(testing::HasSubstr(pack.string() + " needs"),
                                               testing::Not(testing::HasSubstr("alone"))))));
}

TEST(TransferVerify, ABadValueIsNamedWithTheValidOnes) {
  EXPECT_EQ(parse_verify("full"), Verify::full);
  EXPECT_THAT([] { parse_verify("some"); }, ThrowsErrorWith("'some'", "quick, full or off"));
}

}  // namespace
}  // namespace lockstep::transfer
