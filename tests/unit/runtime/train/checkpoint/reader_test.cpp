// A file of a checkpoint is read once, from begin to end: verified, with the parts that are needed.
#include "runtime/train/checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files.h"
#include "runtime/train/checkpoint/manifest.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Larger than two of the pieces that are read at a time.
class ReadFile : public ::testing::Test {
 protected:
  ReadFile() {
    for (std::size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 31 + i / 4096);
    write_file_atomically(folder_ / "model", content_);
    entry_ = {.name = "model", .item = "model", .bytes = content_.size(), .digest = digest_of(content_)};
  }
  void read(std::vector<FilePart> parts) {
    read_file(FileSystem::real(), folder_.path(), entry_, std::move(parts), progress_);
  }

  testing::TemporaryFolder folder_;
  std::string content_ = std::string(std::size_t{9} << 20, ' ');
  FileEntry entry_;
  FileProgress progress_;
};

TEST_F(ReadFile, GivesPartsInAnyOrder) {
  const std::size_t size = content_.size();
  std::vector<std::pair<std::size_t, std::string>> wanted;
  for (const auto& [begin, length] : std::vector<std::pair<std::size_t, std::size_t>>{
           {size - 5, 5}, {0, 1}, {1, 0}, {(4UL << 20U) - 2, 3}, {100, 6UL << 20U}, {3, 4}, {0, size}})
    wanted.emplace_back(begin, std::string(length, '?'));
  std::vector<FilePart> parts;
  for (auto& [begin, into] : wanted) parts.push_back({begin, std::as_writable_bytes(std::span(into))});
  read(parts);
  for (const auto& [begin, got] : wanted) EXPECT_EQ(got, content_.substr(begin, got.size())) << begin;
}

TEST_F(ReadFile, ComparesAlsoWhatIsNotNeeded) {
  content_[content_.size() / 2] ^= 1;
  write_file_atomically(folder_ / "model", content_);
  EXPECT_THAT([&] { read({}); }, ThrowsMessage<Damaged>(HasSubstr("model was modified")));
  content_.pop_back();
  write_file_atomically(folder_ / "model", content_);
  EXPECT_THAT([&] { read({}); }, ThrowsMessage<Damaged>(HasSubstr("model ends at offset")));
}

}  // namespace
}  // namespace lockstep::checkpoint
