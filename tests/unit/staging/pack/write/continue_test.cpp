// create() is killed, fails or is stopped at every point, and is continued.

#include <csignal>
#include <random>
#include <set>

#include "common/process.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/file_list.h"
#include "staging/pack/write/journal.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kMaxCalls = 1000;

class PackContinue : public staging_test::StagingTest {
 protected:
  PackContinue() {
    for (int i = 0; i < 20; ++i) write(fmt::format("s/{:02}.bin", i), std::string(3000 + 10 * i, 'a' + i));
    write("s/07.json", "{}");
  }
  /// Four samples fill a shard.
  CreateOptions options(const fs::path& out = "out", FileSystem* system = nullptr) {
    CreateOptions options;
    options.folder = folder_ / "s";
    options.files = files_below(options.folder, {});
    options.out = folder_ / out;
    options.shard_bytes = 16 << 10;
    options.threads = 2;
    options.system = system;
    options.notice = [&](const std::string& line) { notices_.push_back(line); };
    return options;
  }
  /// Leaves the files of a call that was killed after it had packed `files` files.
  void kill_after(std::size_t files) {
    ASSERT_EQ(in_child([&] {
                CreateOptions killed = options();
                killed.progress = [&](std::size_t done, std::uint64_t) {
                  if (done == files) ::raise(SIGKILL);
                };
                create(killed);
              }),
              kKilled);
  }
  std::map<std::string, std::string> fresh() {
    create(options("fresh"));
    std::map<std::string, std::string> content = content_of(folder_ / "fresh");
    fs::remove_all(folder_ / "fresh");
    return content;
  }

  std::vector<std::string> notices_;
};

TEST_F(PackContinue, KilledAtAnySystemCallItContinuesToTheSameBytes) {
  const auto whole = fresh();
  const std::size_t shards = whole.size() - 1;  // and the index
  std::set<std::size_t> continued;
  int call = 1;
  for (; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    const int code = in_child([&] {
      KilledAt killed(call);
      create(options("out", &killed));
    });
    if (code != kKilled) {
      ASSERT_EQ(code, 0);
      break;
    }
    if (!fs::exists(folder_ / "out")) {
      continued.insert(create(options()).continued_files);
    } else {  // killed after publishing: the next call reports that and cleans up
      EXPECT_THAT([&] { create(options()); }, ThrowsErrorWith("already exists"));
    }
    ASSERT_EQ(content_of(folder_ / "out"), whole);
    ASSERT_THAT(names_here(), ElementsAre("out", "s"));
    fs::remove_all(folder_ / "out");
  }
  EXPECT_EQ(content_of(folder_ / "out"), whole);
  EXPECT_THAT(names_here(), ElementsAre("out", "s"));
  EXPECT_GT(call, 30) << "the calls do not use the given file system";
  EXPECT_EQ(continued.size(), shards + 1) << "the begin and the end of each shard";
  EXPECT_EQ(*continued.rbegin(), 21U);
}

TEST_F(PackContinue, FailedAtAnySystemCallItContinuesToTheSameBytes) {
  const auto whole = fresh();
  int call = 1;
  for (; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    FailsAt full(call, ENOSPC);
    try {
      create(options("out", &full));
      if (!full.failed()) break;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
      if (fs::exists(folder_ / ".out.unfinished/pack/shard-000001.tar")) {  // then the first one is complete
        EXPECT_THAT(error.what(), HasSubstr("run the same command again to continue"));
      }
    }
    if (!fs::exists(folder_ / "out")) create(options());
    ASSERT_EQ(content_of(folder_ / "out"), whole);
    fs::remove_all(folder_ / "out");
    fs::remove_all(folder_ / ".out.unfinished");
  }
  EXPECT_GT(call, 30);
  EXPECT_LT(call, kMaxCalls);
}

TEST_F(PackContinue, AKillInTheMiddleOfAShardLosesThatShardOnly) {
  const auto whole = fresh();
  for (std::size_t files = 1; files <= 21; ++files) {
    SCOPED_TRACE(files);
    kill_after(files);
    const CreateResult result = create(options());
    EXPECT_LE(result.continued_files, files);
    EXPECT_GE(result.continued_files + 5, files);  // the largest shard
    EXPECT_EQ(result.samples, 20U);
    EXPECT_EQ(result.parts, 21U);
    EXPECT_EQ(content_of(folder_ / "out"), whole);
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(PackContinue, AfterAChangedFilePackingContinuesFromItsShard) {
  kill_after(16);
  write("s/05.bin", std::string(2900, 'z'));
  notices_.clear();
  const CreateResult result = create(options());
  EXPECT_EQ(result.continued_files, 4U);
  EXPECT_THAT(notices_, ElementsAre(testing::AllOf(HasSubstr("continuing after 1 complete shards"),
                                                   HasSubstr("05.bin has changed"))));
  EXPECT_EQ(content_of(folder_ / "out"), fresh());
}

TEST_F(PackContinue, AFileWithTheSameSizeAndOtherContentIsDetected) {
  kill_after(16);
  write("s/02.bin", std::string(3020, 'z'));
  notices_.clear();
  EXPECT_EQ(create(options()).continued_files, 0U);
  EXPECT_THAT(notices_,
              ElementsAre(testing::AllOf(HasSubstr("02.bin has changed"), HasSubstr("everything again"))));
  EXPECT_EQ(content_of(folder_ / "out"), fresh());
}

TEST_F(PackContinue, AFileRewrittenWithTheSameSizeAndTimeIsDetected) {
  kill_after(16);
  const fs::path file = folder_ / "s/02.bin";
  const fs::file_time_type time = fs::last_write_time(file);
  write("s/02.bin", std::string(3020, 'z'));
  fs::last_write_time(file, time);
  notices_.clear();
  EXPECT_EQ(create(options()).continued_files, 0U);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("02.bin has changed")));
  EXPECT_EQ(content_of(folder_ / "out"), fresh());
}

TEST_F(PackContinue, AShardIsPackedAgainIfTheNextFileNowFitsIntoIt) {
  kill_after(12);
  write("s/04.bin", "x");  // fits into the first shard
  EXPECT_EQ(create(options()).continued_files, 0U);
  EXPECT_EQ(content_of(folder_ / "out"), fresh());
}

TEST_F(PackContinue, RandomChangesGiveTheBytesOfANewCall) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    kill_after(1 + random() % 15);
    const std::string name = fmt::format("s/{:02}.{}", random() % 20, random() % 4 == 0 ? "json" : "bin");
    if (random() % 4 == 0) {
      fs::remove(folder_ / name);
    } else {
      write(name, std::string(random() % 6000, static_cast<char>('a' + random() % 26)));
    }
    write("s/00.bin", std::string(3000, 'a'));  // so that the list is not empty
    create(options());
    ASSERT_EQ(content_of(folder_ / "out"), fresh());
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(PackContinue, OtherOptionsPackEverythingAgain) {
  kill_after(16);
  CreateOptions other = options();
  other.shard_bytes = 32 << 10;
  notices_.clear();
  EXPECT_EQ(create(other).continued_files, 0U);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("other options: packing everything again")));
}

TEST_F(PackContinue, AShardDamagedMeanwhileIsPackedAgain) {
  kill_after(16);
  fs::resize_file(folder_ / ".out.unfinished/pack/shard-000001.tar", 1000);
  EXPECT_EQ(create(options()).continued_files, 4U);
  EXPECT_EQ(content_of(folder_ / "out"), fresh());
}

TEST_F(PackContinue, AnyDamageToTheJournalIsDetected) {
  kill_after(21);
  const auto whole = fresh();
  const fs::path journal = folder_ / ".out.unfinished/complete";
  for (const std::string name : {"purpose", "0", "2"}) {
    const std::string good = staging_test::read(journal / name);
    for (std::size_t at = 0; at < good.size(); at += 41) {
      SCOPED_TRACE(fmt::format("{}, byte {}", name, at));
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      fs::copy(folder_ / ".out.unfinished", folder_ / "copy", fs::copy_options::recursive);
      write(".out.unfinished/complete/" + name, at % 2 == 0 ? bad : good.substr(0, at));
      create(options());
      ASSERT_EQ(content_of(folder_ / "out"), whole);
      fs::remove_all(folder_ / "out");
      fs::rename(folder_ / "copy", folder_ / ".out.unfinished");
    }
  }
}

TEST_F(PackContinue, StoppedItKeepsCompleteShardsAndTellsHowToContinue) {
  std::atomic<bool> stop = false;
  CreateOptions stopped = options();
  stopped.stop = &stop;
  stopped.progress = [&](std::size_t files, std::uint64_t) { stop = files == 10; };
  EXPECT_THAT(
      [&] { create(stopped); },
      testing::Throws<Stopped>(testing::Property(
          &Error::what, HasSubstr("2 complete shards are kept: run the same command again to continue"))));
  EXPECT_EQ(create(options()).continued_files, 9U);
}

TEST_F(PackContinue, StoppedBeforeAShardIsCompleteItLeavesNothing) {
  const std::atomic<bool> stop = true;
  CreateOptions stopped = options();
  stopped.stop = &stop;
  EXPECT_THAT([&] { create(stopped); }, ThrowsErrorWith("nothing is kept"));
  EXPECT_THAT(names_here(), ElementsAre("s"));
}

TEST_F(PackContinue, StoppedWhileItChecksPackedFilesItKeepsAllShards) {
  kill_after(16);
  const std::atomic<bool> stop = true;
  CreateOptions stopped = options();
  stopped.stop = &stop;
  EXPECT_THAT([&] { create(stopped); }, ThrowsErrorWith("3 complete shards are kept"));
  EXPECT_EQ(create(options()).continued_files, 13U);
}

TEST_F(PackContinue, ASignalEndsTheProgramWithOneLineAndByThatSignal) {
  for (int i = 0; i < 4000; ++i)
    write(fmt::format("many/{:04}", i), "x");  // each in its own shard, so that packing takes some time
  const std::string script =
      R"(nice -n 19 "$1" create "$2/many" --out "$2/p" --shard-size 1 2>"$2/error" & pid=$!
         until [ -e "$2/.p.unfinished/pack/shard-000001.tar" ] || [ -e "$2/p" ]; do :; done
         kill -TERM $pid; wait $pid)";
  const auto stopped = run_process({"bash", "-c", script, "bash", LOCKSTEP_PACK, folder_.string()});
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM);
  const std::string error = staging_test::read(folder_ / "error");
  EXPECT_THAT(error, testing::StartsWith("lockstep-pack: stopped; "));
  EXPECT_THAT(error, HasSubstr("run the same command again to continue"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1);
  const auto next = run_process({LOCKSTEP_PACK, "create", (folder_ / "many").string(), "--out",
                                 (folder_ / "p").string(), "--shard-size", "1"});
  EXPECT_EQ(next.exit_code, 0);
  EXPECT_THAT(next.error, HasSubstr("continuing after"));
  open(folder_ / "p")->verify();
}

}  // namespace
}  // namespace lockstep::pack
