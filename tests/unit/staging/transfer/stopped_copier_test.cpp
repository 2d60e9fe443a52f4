// Another process of the same user copies the same source. A put waits for it, unless it is stopped.

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "staging/cache/store.h"
#include "staging/transfer/put.h"
#include "staging/transfer/source_lookup.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using std::chrono::milliseconds;
using testing::IsEmpty;

class StoppedCopier : public staging_test::StagingTest {
 protected:
  StoppedCopier() : pack_(make_large_pack("p", 200)) {}

  PutOptions options(milliseconds patience) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.sizes.chunk_bytes = 16384;
    options.threads = 1;
    options.copier_timeout = patience;
    return options;
  }
  PutResult put_one(milliseconds patience) const { return put({pack_.string()}, options(patience)).at(0); }
  /// Starts a process that copies a part and then stops, as after kill -STOP.
  pid_t start_and_stop(milliseconds patience = milliseconds(0)) const {
    const pid_t copier = start_child([&] {
      PutOptions stopping = options(patience);
      int chunks = 0;
      stopping.on.progress = [&](const std::string&, const PutProgress&) {
        if (++chunks == 5) ::raise(SIGSTOP);
      };
      put({pack_.string()}, stopping);
    });
    int status = 0;
    EXPECT_EQ(::waitpid(copier, &status, WUNTRACED), copier);
    EXPECT_TRUE(WIFSTOPPED(status));
    return copier;
  }

  fs::path pack_;
};

TEST_F(StoppedCopier, EndsTheOthersWithOneLineAndGoesOnWithoutHarm) {
  const pid_t copier = start_and_stop();
  int waited = 0;
  PutOptions waiting = options(milliseconds(500));
  waiting.on.waiting = [&](const std::string&) { ++waited; };
  EXPECT_THAT([&] { put({pack_.string()}, waiting); },
              ThrowsErrorWith("has made no progress for 500 ms: it is stopped or hangs"));
  EXPECT_EQ(waited, 1);
  ::kill(copier, SIGCONT);
  EXPECT_EQ(end_of(copier), 0);
  const PutResult whole = put_one(std::chrono::hours(1));
  EXPECT_TRUE(whole.hit);
  EXPECT_EQ(content_of(whole.path), content_of(pack_));
}

TEST_F(StoppedCopier, OneThatIsKilledIsTakenOverAtOnce) {
  const pid_t copier = start_and_stop();
  std::atomic<bool> waits = false;
  std::thread killer([&] {
    staging_test::wait_for([&] { return waits.load(); });
    ::kill(copier, SIGKILL);
  });
  PutOptions waiting = options(std::chrono::hours(1));
  waiting.on.waiting = [&](const std::string&) { waits = true; };
  const PutResult mine = put({pack_.string()}, waiting).at(0);
  killer.join();
  end_of(copier);
  EXPECT_THAT(mine.note, IsEmpty());
  EXPECT_EQ(content_of(mine.path), content_of(pack_));
  EXPECT_EQ(cache::Store(folder_ / "cache").list().size(), 1U);
}

// A process copies nothing, for example, while it waits for other nodes or reads a copy back.
TEST_F(StoppedCopier, OneThatCopiesNothingForAWhileIsWaitedFor) {
  std::atomic<bool> begun = false;
  std::thread copier([&] {
    PutOptions slow = options(milliseconds(0));
    slow.on.progress = [&](const std::string&, const PutProgress&) {
      if (!begun.exchange(true)) std::this_thread::sleep_for(milliseconds(4000));
    };
    put({pack_.string()}, slow);
  });
  EXPECT_TRUE(staging_test::wait_for([&] { return begun.load(); }));
  const PutResult mine = put_one(milliseconds(2000));
  copier.join();
  EXPECT_TRUE(mine.hit);
  EXPECT_EQ(cache::Store(folder_ / "cache").list().size(), 1U);
}

TEST(Heartbeat, StopsWhileASystemCallDoesNotReturn) {
  const UniqueFd file(::memfd_create("lock", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  const auto beat = [&] {
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    return std::chrono::system_clock::time_point(std::chrono::seconds(status.st_mtim.tv_sec) +
                                                 std::chrono::microseconds(status.st_mtim.tv_nsec / 1000));
  };
  const auto beats_after = [&](std::chrono::system_clock::time_point last) {
    return staging_test::wait_for([&] { return beat() > last; });
  };
  Heartbeat heartbeat(milliseconds(50), milliseconds(5));
  const Heartbeat::Beating beating = heartbeat.touch(file.get());
  EXPECT_TRUE(beats_after(beat()));
  {
    const PendingCall call("/source/file");
    EXPECT_TRUE(staging_test::wait_for(
        [&] { return std::chrono::system_clock::now() - beat() > milliseconds(500); }));
  }
  EXPECT_TRUE(beats_after(beat()));
}

}  // namespace
}  // namespace lockstep::transfer
