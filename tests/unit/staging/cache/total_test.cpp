// The node's total over users who cannot look into each other's stores.

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>

#include "common/files.h"
#include "staging/cache/store.h"
#include "staging/cache/usage_claims.h"
#include "tests/unit/staging/cache/node_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using LockKind = FileSystem::LockKind;

constexpr std::uint64_t kTotal = 10 * kUnit;

class CacheTotal : public CacheTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be several users";
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    for (const uid_t user : {kOne, kTwo}) {
      fs::create_directory(store_of(user));
      ASSERT_EQ(::chown(store_of(user).c_str(), user, user), 0);
      UsageClaims::prepare(claims(), user);
    }
  }
  fs::path store_of(uid_t user) const { return folder_ / std::to_string(user); }
  fs::path claims() const { return folder_ / "claims"; }
  static StoreOptions options() {
    return {.quota = 0, .total = kTotal, .claims_folder = {}, .keep = std::chrono::seconds(0)};
  }
  int put(uid_t user, const std::string& name, std::uint64_t units) const {
    return as_user(user, [&] {
      Store store(store_of(user), options());
      publish(store, name, std::string(units * kUnit, 'x'));
    });
  }
  std::uint64_t claimed(uid_t user) const { return UsageClaims(claims(), FileSystem::real()).claimed(user); }
};

TEST_F(CacheTotal, UsersTogetherStayBelowTheTotal) {
  EXPECT_EQ(put(kOne, "a", 4), 0);
  EXPECT_EQ(claimed(kOne), 4 * kUnit);
  EXPECT_EQ(as_user(kTwo,
                    [&] {
                      Store store(store_of(kTwo), options());
                      const ObjectLock lock = store.lock("b", LockKind::exclusive);
                      try {
                        store.begin("b", 7 * kUnit);
                      } catch (const Error& error) {
                        EXPECT_THAT(
                            error.what(),
                            testing::AllOf(testing::HasSubstr("needs 68.4 KiB"),
                                           testing::HasSubstr("may hold 97.7 KiB together"),
                                           testing::HasSubstr("39.1 KiB of it is held by other users"),
                                           testing::HasSubstr("gc --all")));
                        ::_exit(testing::Test::HasFailure() ? 1 : 7);
                      }
                    }),
            7);
  EXPECT_EQ(claimed(kTwo), 0U) << "a claim is left over";
  EXPECT_EQ(put(kTwo, "b", 6), 0);
  EXPECT_EQ(put(kTwo, "c", 5), 0) << "the user's own idle object can be evicted";
  EXPECT_EQ(claimed(kTwo), 5 * kUnit);
  EXPECT_NE(put(kOne, "d", 6), 0);
  EXPECT_TRUE(fs::exists(store_of(kOne) / "objects/a")) << "removed although that does not help";
}

TEST_F(CacheTotal, ADiscardedCopyIsNoLongerClaimed) {
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      Store store(store_of(kOne), options());
                      const ObjectLock lock = store.lock("a", LockKind::exclusive);
                      const Incoming incoming = store.begin("a", 9 * kUnit);
                      if (claimed(kOne) != 9 * kUnit) ::_exit(5);
                    }),
            0);
  EXPECT_EQ(claimed(kOne), 0U);
}

// No other user can look into that store: until its user's next call, nobody knows what the copy has left.
TEST_F(CacheTotal, AKilledCopyIsClaimedInFullUntilItsUsersNextCall) {
  EXPECT_EQ(put(kOne, "old", 1), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t copier = staging_test::start_child([&] {
    as_user(kOne, [&] {
      Store store(store_of(kOne), options());
      const ObjectLock lock = store.lock("a", LockKind::exclusive);
      Incoming incoming = store.begin("a", 8 * kUnit);
      FileSystem::real().write_file(incoming.files() / "data", std::string(2 * kUnit, 'x'), 0600);
      const pid_t self = ::getpid();
      if (::write(ends[1], &self, sizeof self) != sizeof self) ::_exit(2);
      ::pause();
    });
  });
  pid_t working = 0;
  ASSERT_EQ(::read(ends[0], &working, sizeof working), static_cast<ssize_t>(sizeof working));
  EXPECT_EQ(claimed(kOne), 9 * kUnit) << "the copy is alive";
  EXPECT_NE(put(kTwo, "b", 2), 0);
  ASSERT_EQ(::kill(working, SIGKILL), 0);
  ::waitpid(copier, nullptr, 0);
  EXPECT_NE(put(kTwo, "b", 2), 0);
  EXPECT_EQ(as_user(kOne, [&] { Store(store_of(kOne)).recover(); }), 0);
  EXPECT_EQ(claimed(kOne), 3 * kUnit) << "the bytes that are really there";
  EXPECT_EQ(put(kTwo, "b", 7), 0);
  EXPECT_NE(put(kTwo, "c", 8), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(CacheTotal, WhileACopyIsPublishedAllOfItIsClaimed) {
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      staging_test::WatchedFileSystem killer([&](int, const FileCall& call) {
                        if (call.kind == FileCall::Kind::rename) ::_exit(7);
                        return 0;
                      });
                      Store store(store_of(kOne), options(), killer);
                      publish(store, "a", std::string(6 * kUnit, 'x'));
                    }),
            7);
  EXPECT_EQ(claimed(kOne), 6 * kUnit);
}

// Each object takes more than half of the total, so two published at once would exceed it. The users count
// this themselves, because a measurement from outside sees the two stores at different moments.
TEST_F(CacheTotal, TwoUsersAtOnceNeverExceedTheTotal) {
  constexpr std::size_t kMapped = sizeof(std::atomic<int>);
  void* const memory = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& published = *new (memory) std::atomic<int>(0);
  std::vector<pid_t> children;
  for (const uid_t user : {kOne, kTwo}) {
    children.push_back(staging_test::start_child([&] {
      ::_exit(as_user(user, [&] {
        Store store(store_of(user), options());
        for (int done = 0; done < 10;) {
          const std::string name = fmt::format("{}", done % 3);
          try {
            publish(store, name, std::string(6 * kUnit, 'x'));
          } catch (const Error& error) {
            if (std::string(error.what()).find("held by other users") == std::string::npos) throw;
            ::sched_yield();
            continue;
          }
          if (published.fetch_add(1) != 0) ::_exit(5);
          const ObjectLock lock = store.lock(name, LockKind::exclusive);
          published.fetch_sub(1);
          store.remove(name);
          store.write_claim();
          ++done;
        }
      }));
    }));
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "5: both had an object at once";
  }
  ::munmap(memory, kMapped);
}

TEST_F(CacheTotal, OnlyTheUsersOwnClaimCounts) {
  const UsageClaims usage(claims(), FileSystem::real());
  const auto set = [&](const std::string& name, const std::string& text, uid_t owner) {
    write("claims/" + name, text);
    ASSERT_EQ(::chown((claims() / name).c_str(), owner, owner), 0);
  };
  set(std::to_string(kOne), "               70000\n", kOne);
  EXPECT_EQ(usage.claimed(kOne), 70000U);
  EXPECT_EQ(usage.claimed_by_others(), 70000U);
  set(std::to_string(kTwo), "90000", kOne);
  EXPECT_EQ(usage.claimed(kTwo), 0U) << "written by another user";
  set(std::to_string(kTwo), "many", kTwo);
  EXPECT_EQ(usage.claimed(kTwo), 0U);
  set(std::to_string(kTwo), "99999999999999999999999", kTwo);
  EXPECT_EQ(usage.claimed(kTwo), 0U);
  set(std::to_string(kTwo), "18446744073709551615", kTwo);
  EXPECT_EQ(usage.claimed_by_others(), ~std::uint64_t{0}) << "the sum of two must not overflow";
  fs::remove(claims() / std::to_string(kTwo));
  fs::create_symlink(claims() / std::to_string(kOne), claims() / std::to_string(kTwo));
  EXPECT_EQ(usage.claimed(kTwo), 0U);
  fs::remove(claims() / std::to_string(kTwo));
  ASSERT_EQ(::mkfifo((claims() / std::to_string(kTwo)).c_str(), 0666), 0);
  EXPECT_EQ(usage.claimed(kTwo), 0U);
  set("someone", "5", kTwo);
  EXPECT_EQ(usage.claimed_by_others(), 70000U);
  fs::permissions(claims(), fs::perms::all);
  EXPECT_EQ(usage.claimed_by_others(), 0U) << "any user may have made these files";
}

TEST_F(CacheTotal, WithoutClaimsEachUserKeepsTheTotalAlone) {
  fs::remove_all(claims());
  EXPECT_EQ(put(kOne, "a", 8), 0);
  EXPECT_EQ(put(kTwo, "b", 8), 0);
  EXPECT_NE(put(kTwo, "c", 11), 0);
}

TEST_F(CacheTotal, TheWaitForTheLockIsLimited) {
  const UniqueFd somebody = open_file(claims() / "lock", O_RDONLY);
  ASSERT_EQ(::flock(somebody.get(), LOCK_EX), 0);
  EXPECT_EQ(put(kOne, "a", 4), 0);
  EXPECT_EQ(claimed(kOne), 4 * kUnit);
}

}  // namespace
}  // namespace lockstep::cache
