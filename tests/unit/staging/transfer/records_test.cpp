// Staged TFRecord and RecordIO files: the copy takes over the source's index, so no node reads them through.

#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>

#include "staging/pack/reader.h"
#include "staging/transfer/put.h"
#include "staging/transfer/supervisor.h"
#include "tests/unit/staging/pack/formats/format_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;

enum class When { before_it_is_opened, when_it_is_open, before_it_is_read };

class StageRecords : public staging_test::StagingTest {
 protected:
  StageRecords() {
    ::setenv("XDG_CACHE_HOME", (folder_ / "home").c_str(), 1);
    write("t/a.tfrecord", tfrecord({std::string(5000, 'x'), std::string(6000, 'y'), std::string(5000, 'z')}));
    write("t/sub/b.tfrecord", tfrecord({"one", "two"}));
  }
  ~StageRecords() override { ::unsetenv("XDG_CACHE_HOME"); }

  PutResult put_one(const fs::path& source) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    return put({source.string()}, options).at(0);
  }
  /// Whether opening the file reads all of it, and so finds damage.
  static bool is_read_through(const fs::path& file) {
    flip_byte(file, 7000);  // in the second record; the file's time stays
    bool read = false;
    try {
      (void)pack::open(file);
    } catch (const Error&) {
      read = true;
    }
    flip_byte(file, 7000);
    return read;
  }
};

TEST_F(StageRecords, ThatWereIndexedAtTheSourceAreNotReadThroughAgainOnTheNode) {
  (void)pack::open(folder_ / "t");
  ASSERT_TRUE(fs::exists(folder_ / "t/.a.tfrecord.lockstep"));
  const PutResult copy = put_one(folder_ / "t");
  EXPECT_EQ(content_of(copy.path), content_of(folder_ / "t")) << "the indexes too";
  EXPECT_EQ(copy.bytes, copy.from_source);
  EXPECT_FALSE(is_read_through(copy.path / "a.tfrecord"));
  EXPECT_EQ(pack::open(copy.path)->fingerprint(), pack::open(folder_ / "t")->fingerprint());
  pack::open(copy.path)->verify();
  EXPECT_TRUE(put_one(folder_ / "t").hit);
  const PutResult one = put_one(folder_ / "t/a.tfrecord");
  EXPECT_FALSE(is_read_through(one.path));
}

TEST_F(StageRecords, ThatAreIndexedLaterAreTheSameSource) {
  const PutResult copy = put_one(folder_ / "t");
  EXPECT_TRUE(is_read_through(copy.path / "a.tfrecord"));
  (void)pack::open(folder_ / "t");
  EXPECT_TRUE(put_one(folder_ / "t").hit);
}

TEST_F(StageRecords, WhoseIndexLiesInTheUsersFolderAreKnownByTheirTime) {
  fs::create_directory(folder_ / "t/.a.tfrecord.lockstep");  // so that no index can be made beside the file
  (void)pack::open(folder_ / "t/a.tfrecord");
  ASSERT_FALSE(content_of(folder_ / "home").empty());
  fs::remove(folder_ / "t/.a.tfrecord.lockstep");
  EXPECT_FALSE(is_read_through(put_one(folder_ / "t/a.tfrecord").path));
}

TEST_F(StageRecords, AnIndexThatIsDamagedOrOfOtherDataIsNotCopied) {
  for (const char* why : {"damaged", "other"}) {
    SCOPED_TRACE(why);
    (void)pack::open(folder_ / "t");
    const fs::path index = folder_ / "t/.a.tfrecord.lockstep";
    if (std::strcmp(why, "damaged") == 0) {
      flip_byte(index, fs::file_size(index) / 2);
    } else {
      fs::copy_file(folder_ / "t/sub/.b.tfrecord.lockstep", index, fs::copy_options::overwrite_existing);
    }
    const PutResult copy = put_one(folder_ / "t");
    EXPECT_FALSE(fs::exists(copy.path / ".a.tfrecord.lockstep"));
    EXPECT_TRUE(fs::exists(copy.path / "sub/.b.tfrecord.lockstep"));
    EXPECT_TRUE(is_read_through(copy.path / "a.tfrecord"));
    EXPECT_EQ(pack::open(copy.path)->size(), 5U);
    FileSystem::real().remove_all(folder_ / "cache");
    FileSystem::real().remove_all(folder_ / "home");
    fs::remove(index);
  }
}

// The index describes the file as it was before the rewrite.
TEST_F(StageRecords, TheIndexOfARewrittenFileIsNotUsed) {
  (void)pack::open(folder_ / "t");
  write("t/a.tfrecord", tfrecord({std::string(6000, 'x'), std::string(5000, 'y'), std::string(5000, 'z')}));
  const fs::path file = folder_ / "t/a.tfrecord";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
  const PutResult copy = put_one(folder_ / "t");
  const auto reader = pack::open(copy.path);
  EXPECT_EQ(reader->bytes(0), 6000U);
  reader->verify();
}

TEST_F(StageRecords, SpaceForTheIndexesIsCounted) {
  (void)pack::open(folder_ / "t");
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : content_of(folder_ / "t")) bytes += content.size();
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  options.limits.quota = bytes - 1;
  EXPECT_THROW(put({(folder_ / "t").string()}, options), cache::NoSpace);
  options.limits.quota = bytes;
  EXPECT_EQ(put({(folder_ / "t").string()}, options).at(0).bytes, bytes);
  EXPECT_EQ(cache::Store(folder_ / "cache").usage(true).bytes(), bytes);
}

// If an index changes during the copy, only the index is lost, and the copy takes no more space than the
// index took when the copy began.
TEST_F(StageRecords, AnIndexThatChangesWhileItIsCopiedIsLeftOutWithALine) {
  const fs::path index = folder_ / "t/.a.tfrecord.lockstep";
  const std::function<void()> grow = [&] { std::ofstream(index, std::ios::app) << std::string(5000, 'x'); };
  const std::function<void()> shrink = [&] { fs::resize_file(index, 100); };
  const std::function<void()> vanish = [&] { fs::remove(index); };
  // A process that has it open still reads the old content.
  const std::vector<std::pair<When, std::function<void()>>> harmless = {
      {When::before_it_is_read, grow}, {When::when_it_is_open, vanish}, {When::before_it_is_read, vanish}};
  const std::vector<std::pair<When, std::function<void()>>> harmful = {
      {When::before_it_is_opened, grow},   {When::before_it_is_opened, shrink},
      {When::before_it_is_opened, vanish}, {When::when_it_is_open, grow},
      {When::when_it_is_open, shrink},     {When::before_it_is_read, shrink}};
  for (std::size_t n = 0; n < harmful.size() + harmless.size(); ++n) {
    SCOPED_TRACE(n);
    const auto& [when, change] = n < harmful.size() ? harmful[n] : harmless[n - harmful.size()];
    fs::remove(index);
    FileSystem::real().remove_all(folder_ / "home");
    (void)pack::open(folder_ / "t");
    std::uint64_t bytes = 0;
    for (const auto& [name, content] : content_of(folder_ / "t")) bytes += content.size();
    const auto happens = [&when = when, &change = change](When now) {
      if (now == when) change();
    };
    HookedFileSystem system([&](const FileCall& call) {
      const bool opens = index == call.path && call.kind == FileCall::Kind::open;
      if (opens) happens(When::before_it_is_opened);
      if (index == call.path && call.kind == FileCall::Kind::read && call.offset == 0)
        happens(When::before_it_is_read);
      const ssize_t result = real_call(call);
      if (opens) happens(When::when_it_is_open);
      return result;
    });
    PutOptions options;
    options.cache_dir = folder_ / fmt::format("cache{}", n);
    options.limits.quota = bytes;
    options.file_system = &system;
    const PutResult copy = put({(folder_ / "t").string()}, options).at(0);
    EXPECT_TRUE(fs::exists(copy.path / "sub/.b.tfrecord.lockstep"));
    EXPECT_EQ(cache::Store(options.cache_dir).usage(true).bytes(), copy.bytes);
    EXPECT_LE(copy.from_source, bytes);
    EXPECT_EQ(fs::exists(copy.path / index.filename()), n >= harmful.size());
    EXPECT_EQ(pack::open(copy.path)->size(), 5U);
    if (n >= harmful.size()) {
      EXPECT_EQ(copy.note, "");
      continue;
    }
    EXPECT_THAT(copy.note, testing::HasSubstr(index.string()));
    EXPECT_EQ(copy.note.find(index.string()), copy.note.rfind(index.string()))
        << "named twice: " << copy.note;
    EXPECT_THAT(copy.note, testing::AnyOf(testing::HasSubstr("it has changed"),
                                          testing::HasSubstr("No such file or directory")));
    EXPECT_THAT(copy.note,
                testing::AllOf(testing::StartsWith("1 index beside the data was not copied ("),
                               testing::EndsWith("); such files are read through when first opened")));
  }
}

TEST_F(StageRecords, SeveralIndexesThatAreLeftOutAreOneSentence) {
  (void)pack::open(folder_ / "t");
  for (const char* name : {".a.tfrecord.lockstep", "sub/.b.tfrecord.lockstep"})
    staging_test::flip_byte(folder_ / "t" / name, 0);
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  const std::string note = put({(folder_ / "t").string()}, options).at(0).note;
  EXPECT_THAT(note,
              testing::MatchesRegex("2 indexes beside the data were not copied \\(.*\\.tfrecord\\.lockstep: "
                                    "damaged, or of other data\\); such files are read through when "
                                    "first opened"));
}

TEST_F(StageRecords, TheirIndexesAreReadWithinTheBandwidthAndWaitingForItIsNotAHang) {
  write("many/a.tfrecord", tfrecord(std::vector<std::string>(13'000, "x")));
  (void)pack::open(folder_ / "many");
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : content_of(folder_ / "many")) bytes += content.size();
  ASSERT_GT(bytes, fs::file_size(folder_ / "many/a.tfrecord") + 500'000);
  const auto begin = std::chrono::steady_clock::now();
  const int code = staging_test::in_child([&] {
    const std::optional<ChildEnd> end = run_supervised({.call_timeout = std::chrono::milliseconds(300)});
    if (end) {
      if (!end->stuck.empty()) fail("{}", end->stuck);
      ::_exit(end->code);
    }
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.bandwidth = 1'000'000;
    if (put({(folder_ / "many").string()}, options).at(0).from_source != bytes) fail("other bytes were read");
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took.count(), static_cast<double>(bytes) / 1e6);
  EXPECT_EQ(code, 0) << "waiting for the limit counts as a call";
}

// With another time than in its index, a job that opens the copy at once would read all of the file.
TEST_F(StageRecords, ACopyHandedOutEarlyAlreadyHasTheTimeOfTheOriginal) {
  std::map<std::string, fs::file_time_type> seen;
  for (const char* name : {"a.tfrecord", "sub/b.tfrecord"})
    fs::last_write_time(folder_ / "t" / name,
                        fs::last_write_time(folder_ / "t" / name) - std::chrono::hours(1));
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  options.on.file = [&](const std::string&, const std::string& name, const fs::path& copy) {
    seen[name] = fs::last_write_time(copy);
  };
  put({(folder_ / "t").string()}, options);
  EXPECT_EQ(seen.size(), 2U);
  for (const auto& [name, time] : seen) EXPECT_EQ(time, fs::last_write_time(folder_ / "t" / name)) << name;
}

}  // namespace
}  // namespace lockstep::transfer
