// Staged TFRecord and RecordIO files: where their records lie is known from the source.

#include <stdlib.h>
#include <sys/stat.h>

#include <cstring>

#include "staging/pack/reader.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::content_of;
using staging_test::flip_byte;
using staging_test::tfrecord;

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
  /// Whether opening it reads all of the file: then it finds what is damaged in it.
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
  fs::create_directory(folder_ / "t/.a.tfrecord.lockstep");  // none can be made beside the file
  (void)pack::open(folder_ / "t/a.tfrecord");
  ASSERT_EQ(content_of(folder_ / "home").size(), 1U);
  fs::remove(folder_ / "t/.a.tfrecord.lockstep");
  EXPECT_FALSE(is_read_through(put_one(folder_ / "t/a.tfrecord").path));
}

TEST_F(StageRecords, AnIndexThatIsDamagedOrOfOtherDataIsLeftBehind) {
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

// The index says what the file looked like, which is not what it looks like now.
TEST_F(StageRecords, AnIndexOfAFileThatWasWrittenAnewIsNotBelieved) {
  (void)pack::open(folder_ / "t");
  write("t/a.tfrecord", tfrecord({std::string(6000, 'x'), std::string(5000, 'y'), std::string(5000, 'z')}));
  const fs::path file = folder_ / "t/a.tfrecord";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
  const PutResult copy = put_one(folder_ / "t");
  const auto reader = pack::open(copy.path);
  EXPECT_EQ(reader->bytes(0), 6000U);
  reader->verify();
}

TEST_F(StageRecords, RoomForTheIndexesIsCounted) {
  (void)pack::open(folder_ / "t");
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : content_of(folder_ / "t")) bytes += content.size();
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  options.limits.quota = bytes - 1;
  EXPECT_THROW(put({(folder_ / "t").string()}, options), cache::NoRoom);
  options.limits.quota = bytes;
  EXPECT_EQ(put({(folder_ / "t").string()}, options).at(0).bytes, bytes);
  EXPECT_EQ(cache::Store(folder_ / "cache").usage(true).bytes(), bytes);
}

}  // namespace
}  // namespace lockstep::transfer
