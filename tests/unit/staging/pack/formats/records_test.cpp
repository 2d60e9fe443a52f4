
#include <cstdlib>

#include "common/files.h"
#include "staging/pack/format.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/formats/record_scan.h"
#include "staging/pack/formats/side_index.h"
#include "staging/pack/reader.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using staging_test::bytes_of;  // not pack::bytes_of()

class FormatRecords : public staging_test::StagingTest {
 protected:
  FormatRecords() { ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1); }
  ~FormatRecords() override { ::unsetenv("XDG_CACHE_HOME"); }

  /// Whether opening a file makes its index.
  bool must_make(const fs::path& path) const {
    const DataFile file(path);
    return SideIndex(file, "test",
                     [&](IndexBuilder& builder) {
                       builder.add_sample("-");
                       builder.add_part("", 0, 1, 0);
                     })
        .made();
  }
  std::size_t indexes_in_cache() const {
    std::error_code none;
    const fs::directory_iterator entries(folder_ / "cache/lockstep/index", none);
    return static_cast<std::size_t>(std::count_if(begin(entries), end(entries), [](const auto& entry) {
      return entry.path().extension() == ".lockstep";
    }));
  }
};

/// A piece of a RecordIO record.
std::string piece(std::uint32_t flag, const std::string& data) {
  const auto word = (flag << 29) | static_cast<std::uint32_t>(data.size());
  return bytes_of(std::uint32_t{0xced7230a}) + bytes_of(word) + data +
         std::string((4 - data.size() % 4) % 4, '\0');
}

TEST_F(FormatRecords, TruncatedTfrecordsAreRefusedWithSampleAndOffset) {
  const std::string whole = tfrecord({"first", "second one"});
  const std::size_t second = tfrecord({"first"}).size();
  for (const std::size_t size : {second + 5, second + 12, second + 20, whole.size() - 1}) {
    write("t/a.tfrecord", whole.substr(0, size));
    EXPECT_THAT([&] { open(folder_ / "t"); },
                ThrowsErrorWith("a.tfrecord, sample 1, offset " + std::to_string(second), "truncated"))
        << size;
  }
}

TEST_F(FormatRecords, DamagedTfrecordsAreRefusedByTheirChecksums) {
  write("t/a.tfrecord", tfrecord({"first", "second one"}));
  const fs::path file = folder_ / "t/a.tfrecord";
  const std::size_t second = tfrecord({"first"}).size();
  flip_byte(file, second + 3);
  EXPECT_THAT([&] { open(file); }, ThrowsErrorWith("sample 1", "checksum of the length"));
  flip_byte(file, second + 3);
  flip_byte(file, second + 15);
  EXPECT_THAT([&] { open(file); }, ThrowsErrorWith("sample 1", "checksum of its 10 bytes"));
  flip_byte(file, second + 15);
  EXPECT_EQ(read_sample(*open(file), 1), "second one");
}

TEST_F(FormatRecords, ReadViewAndVerifyDetectDamageAfterIndexing) {
  const fs::path file = folder_ / "t/a.tfrecord";
  write("t/a.tfrecord", tfrecord({std::string(5000, 'x'), std::string(6000, 'y'), std::string(5000, 'z')}));
  ASSERT_EQ(open(file)->size(), 3U);
  const std::uint64_t offset = open(file)->parts(1)[0].offset;
  flip_byte(file, offset + 3000);  // neither its time nor its ends change
  const auto reader = open(file);
  EXPECT_EQ(read_sample(*reader, 0), std::string(5000, 'x'));
  EXPECT_THAT([&] { read_sample(*reader, 1); },
              ThrowsErrorWith("a.tfrecord, sample 1", std::to_string(offset)));
  EXPECT_THAT([&] { (void)reader->view(1); },
              ThrowsErrorWith("a.tfrecord, sample 1", std::to_string(offset)));
  EXPECT_THAT([&] { reader->verify(); }, ThrowsErrorWith("a.tfrecord, sample 1", "checksum"));
}

// The index is beside the data or, where a folder has its name, in the cache folder.
TEST_F(FormatRecords, AFileCutAtARecordsEndAfterItWasIndexedIsRefusedUntilTheIndexIsRemoved) {
  for (const bool beside : {true, false}) {
    const fs::path folder = folder_ / (beside ? "t" : "u");
    const fs::path file = folder / "a.tfrecord";
    write(file.lexically_relative(folder_), tfrecord({"one", "two", "three"}));
    if (!beside) fs::create_directory(folder / ".a.tfrecord.lockstep");
    ASSERT_EQ(open(file)->size(), 3U);
    fs::resize_file(file, tfrecord({"one", "two"}).size());
    const fs::path place = beside ? folder / ".a.tfrecord.lockstep" : folder_ / "cache/lockstep/index";
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_THAT([&] { open(file); },
                  ThrowsErrorWith("a.tfrecord had 3 records when it was indexed, has 2", place.string()));
    }
    fs::remove_all(place);
    EXPECT_EQ(open(file)->size(), 2U) << "removing the index accepts the file";
  }
}

TEST_F(FormatRecords, AFileRewrittenWithFewerRecordsIsIndexedAgain) {
  write("t/a.tfrecord", tfrecord({"one", "two", "three"}));
  ASSERT_EQ(open(folder_ / "t/a.tfrecord")->size(), 3U);
  write("t/a.tfrecord", tfrecord({"two", "three"}));
  EXPECT_EQ(open(folder_ / "t/a.tfrecord")->size(), 2U);
}

TEST_F(FormatRecords, TheShardsOfAFolderAreOneDataSetAndEmptyShardsAreSkipped) {
  write("t/a.tfrecord-00000-of-00003", tfrecord({"one", "two"}));
  write("t/a.tfrecord-00001-of-00003", "");
  write("t/a.tfrecord-00002-of-00003", tfrecord({"three"}));
  const auto reader = open(folder_ / "t");
  ASSERT_EQ(reader->size(), 3U);
  EXPECT_EQ(read_sample(*reader, 2), "three");
  EXPECT_THAT([&] { open(folder_ / "t/a.tfrecord-00001-of-00003"); }, ThrowsErrorWith("holds no records"));
}

TEST_F(FormatRecords, TfrecordsOfAnyLengthAreReadAcrossBlockBorders) {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < 40; ++i)
    records.emplace_back(i * 7919 % 200'000, static_cast<char>('a' + i % 26));
  write("t/a.tfrecord", tfrecord(records));
  const auto reader = open(folder_ / "t/a.tfrecord");
  ASSERT_EQ(reader->size(), records.size());
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(read_sample(*reader, i), records[i]);
  reader->verify();
}

TEST_F(FormatRecords, AFileTruncatedWhileItIsReadIsAnError) {
  write("data", std::string(std::size_t{3} << 20, 'a'));
  const DataFile file(folder_ / "data");
  Stream stream(file);
  EXPECT_EQ(stream.next().size(), std::size_t{1} << 20);
  fs::resize_file(folder_ / "data", (1 << 20) + 5);
  EXPECT_THAT([&] { (void)stream.next(); }, ThrowsErrorWith("data was truncated to 1048581 bytes"));
}

TEST_F(FormatRecords, TheIndexIsMadeOnceAndAgainWhenTheDataChange) {
  write("d/data", std::string(20'000, 'a'));
  EXPECT_TRUE(must_make(folder_ / "d/data"));
  EXPECT_TRUE(fs::exists(folder_ / "d/.data.lockstep"));
  EXPECT_FALSE(must_make(folder_ / "d/data"));
  fs::last_write_time(folder_ / "d/data", fs::last_write_time(folder_ / "d/data") + std::chrono::seconds(1));
  EXPECT_TRUE(must_make(folder_ / "d/data"));
  flip_byte(folder_ / "d/data", 19'999);  // keeps the time
  EXPECT_TRUE(must_make(folder_ / "d/data"));
  EXPECT_FALSE(must_make(folder_ / "d/data"));
}

TEST_F(FormatRecords, AnUnfinishedIndexOfAKilledProcessIsReplacedAndNotStaged) {
  write("t/a.tfrecord", tfrecord({"one"}));
  write("t/.a.tfrecord.lockstep.unfinished", "left");
  EXPECT_THAT(contents_of(folder_ / "t").files, testing::ElementsAre("a.tfrecord"));
  open(folder_ / "t");
  EXPECT_TRUE(fs::exists(folder_ / "t/.a.tfrecord.lockstep"));
  EXPECT_FALSE(fs::exists(folder_ / "t/.a.tfrecord.lockstep.unfinished"));
  EXPECT_THAT(contents_of(folder_ / "t").files, testing::ElementsAre("a.tfrecord")) << "without the index";
}

TEST_F(FormatRecords, ADamagedIndexIsMadeAgain) {
  write("d/data", std::string(20'000, 'a'));
  EXPECT_TRUE(must_make(folder_ / "d/data"));
  flip_byte(folder_ / "d/.data.lockstep", 100);
  EXPECT_TRUE(must_make(folder_ / "d/data"));
  write("d/.data.lockstep", "nonsense");
  EXPECT_TRUE(must_make(folder_ / "d/data"));
  EXPECT_FALSE(must_make(folder_ / "d/data"));
}

TEST_F(FormatRecords, TheIndexOfACopyWithTheSameTimeIsFoundInTheCacheFolder) {
  // A folder has the name of the index, so that nobody, not even root, can store the index beside the data.
  write("a/data", std::string(20'000, 'a'));
  fs::create_directory(folder_ / "a/.data.lockstep");
  EXPECT_TRUE(must_make(folder_ / "a/data"));
  EXPECT_EQ(indexes_in_cache(), 1U);
  EXPECT_FALSE(must_make(folder_ / "a/data"));
  write("b/data", std::string(20'000, 'a'));
  fs::create_directory(folder_ / "b/.data.lockstep");
  fs::last_write_time(folder_ / "b/data", fs::last_write_time(folder_ / "a/data"));
  EXPECT_FALSE(must_make(folder_ / "b/data"));
}

TEST_F(FormatRecords, AnIndexThatCannotBeStoredIsKeptInMemory) {
  write("t/a.tfrecord", tfrecord({"one", "two"}));
  fs::create_directory(folder_ / "t/.a.tfrecord.lockstep");
  write("cache", "no folder");
  const auto reader = open(folder_ / "t/a.tfrecord");
  EXPECT_EQ(read_sample(*reader, 1), "two");
  reader->verify();
}

TEST_F(FormatRecords, DamagedRecordioIsRefusedWithSampleAndOffset) {
  const std::string good = piece(0, "first");
  const auto refused = [&](const std::string& bytes, auto... texts) {
    write("r/a.rec", bytes);
    EXPECT_THAT([&] { open(folder_ / "r/a.rec"); }, ThrowsErrorWith("a.rec", texts...));
  };
  refused(good + piece(0, "second").substr(0, 13), "sample 1, offset 16", "truncated");
  refused(good + "\x0a\x23\xd7", "sample 1, offset 16", "truncated");
  refused(good + "no magic", "sample 1, offset 16", "no record begins here");
  refused(good + piece(2, "middle"), "sample 1, offset 16", "flag 2");
  refused(good + piece(1, "begin") + piece(0, "whole"), "sample 1", "flag 0");
  refused(good + piece(5, "what"), "sample 1", "flag 5");
  refused(good + piece(1, "begin"), "offset 16", "last pieces");
}

TEST_F(FormatRecords, RecordsInPiecesAreJoinedByRead) {
  write("r/a.rec", piece(0, "whole") + piece(1, "begin123") + piece(2, "mid4") + piece(3, "end"));
  const auto reader = open(folder_ / "r/a.rec");
  ASSERT_EQ(reader->size(), 2U);
  const std::string magic = bytes_of(std::uint32_t{0xced7230a});
  EXPECT_EQ(read_sample(*reader, 1), "begin123" + magic + "mid4" + magic + "end");
  EXPECT_EQ(reader->key(1), "1");
  EXPECT_FALSE(reader->can_view());
  EXPECT_EQ(reader->view(0).size(), 5U);
  EXPECT_THAT([&] { (void)reader->view(1); }, ThrowsErrorWith("sample 1", "3 pieces", "use read()"));
}

TEST_F(FormatRecords, AnIdxThatDoesNotMatchItsRecordsIsRefused) {
  write("r/a.rec", piece(0, "first") + piece(0, "second"));
  const auto refused = [&](const std::string& index, auto... texts) {
    write("r/a.idx", index);
    EXPECT_THAT([&] { open(folder_ / "r"); }, ThrowsErrorWith(texts...));
  };
  refused("7\t0\n", "a.idx has no line for the record at offset 16");
  refused("7\t0\n8\t16\n9\t20\n", "2 records, but its .idx has 3 keys");
  refused("7\t0\n8 16\n", "a.idx, line 2");
  refused("7\t0\n8\tx\n", "a.idx, line 2");
  refused("7\t0\n8\t0\n", "a.idx, line 2", "second key");
  refused("../x\t0\n8\t16\n", "a.idx, line 1: the key leaves its folder");
  write("r/a.idx", "7\t0\n8\t16\n");
  EXPECT_EQ(open(folder_ / "r")->key(1), "8");
  write("r/a.idx", "7\t0\n9\t16\n");
  EXPECT_EQ(open(folder_ / "r")->key(1), "9");
}

}  // namespace
}  // namespace lockstep::pack
