// create() is killed, fails or is stopped at every point, and is continued.

#include <csignal>
#include <random>
#include <set>

#include "common/process.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/file_list.h"
#include "staging/pack/write/packer.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PackContinue : public staging_test::StagingTest {
 protected:
  PackContinue() { write_samples(); }
  void write_samples() const {
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
  std::set<std::size_t> continued;
  const int kills =
      kill_at_every_call({.work = [&](FileSystem& system) { create(options("out", &system)); },
                          .check =
                              [&] {
                                if (!fs::exists(folder_ / "out")) {
                                  continued.insert(create(options()).continued_files);
                                } else {  // ended after publishing: the next call reports that and cleans up
                                  EXPECT_THAT([&] { create(options()); }, ThrowsErrorWith("already exists"));
                                }
                                EXPECT_EQ(content_of(folder_ / "out"), whole);
                                EXPECT_THAT(names_here(), ElementsAre("out", "s"));
                                fs::remove_all(folder_ / "out");
                              }});
  EXPECT_GT(kills, 30) << "the calls do not use the given file system";
  EXPECT_EQ(continued.size(), whole.size())
      << "the begin and the end of each shard; the index is not a shard";
  EXPECT_EQ(*continued.rbegin(), 21U);
}

TEST_F(PackContinue, FailedAtAnySystemCallItContinuesToTheSameBytes) {
  const auto whole = fresh();
  const int refusals = fail_at_every_call(
      {.work = [&](FileSystem& system) { create(options("out", &system)); },
       .check =
           [&] {
             if (!fs::exists(folder_ / "out")) create(options());
             EXPECT_EQ(content_of(folder_ / "out"), whole);
             fs::remove_all(folder_ / "out");
             fs::remove_all(folder_ / ".out.unfinished");
           },
       .refused =
           [&](const Error& error) {
             EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
             if (fs::exists(folder_ /
                            ".out.unfinished/pack/shard-000001.tar")) {  // the first one is complete
               EXPECT_THAT(error.what(), HasSubstr("run the same command again to continue"));
             }
           }},
      ENOSPC);
  EXPECT_GT(refusals, 25);
}

// Four samples fill a shard, and 16 files were packed when the call was killed.
TEST_F(PackContinue, AfterAChangePackingContinuesFromTheFirstShardThatItConcerns) {
  struct Change {
    const char* what;
    std::function<void(CreateOptions&)> make;
    std::size_t continued;
    std::vector<const char*> notice;
  };
  const auto rewrite = [&] { write("s/02.bin", std::string(3020, 'z')); };
  const std::vector<Change> changes{
      {"another size",
       [&](CreateOptions&) { write("s/05.bin", std::string(2900, 'z')); },
       4,
       {"continuing after 1 complete shards", "05.bin has changed"}},
      {"the same size", [&](CreateOptions&) { rewrite(); }, 0, {"02.bin has changed", "everything again"}},
      {"the same size and time",
       [&](CreateOptions&) {
         const fs::file_time_type time = fs::last_write_time(folder_ / "s/02.bin");
         rewrite();
         fs::last_write_time(folder_ / "s/02.bin", time);
       },
       0,
       {"02.bin has changed"}},
      {"the next file fits into the first shard",
       [&](CreateOptions&) { write("s/04.bin", "x"); },
       0,
       {"04.bin"}},
      {"other options",
       [](CreateOptions& options) { options.shard_bytes = 32 << 10; },
       0,
       {"other options: packing everything again"}},
      {"a damaged shard",
       [&](CreateOptions&) { fs::resize_file(folder_ / ".out.unfinished/pack/shard-000001.tar", 1000); },
       4,
       {"shard-000001.tar has changed"}}};
  for (const Change& change : changes) {
    SCOPED_TRACE(change.what);
    write_samples();
    kill_after(16);
    CreateOptions next = options();
    change.make(next);
    notices_.clear();
    EXPECT_EQ(create(next).continued_files, change.continued);
    ASSERT_EQ(notices_.size(), 1U);
    for (const char* text : change.notice) EXPECT_THAT(notices_[0], HasSubstr(text));
    next.out = folder_ / "fresh";
    create(next);
    EXPECT_EQ(content_of(folder_ / "out"), content_of(folder_ / "fresh"));
    for (const char* out : {"out", "fresh"}) fs::remove_all(folder_ / out);
  }
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
