// The files of a checkpoint: what several ranks write comes back by rank.
#include "runtime/train/checkpoint/files_of_items.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/comm/single/communicator.h"
#include "runtime/train/checkpoint/manifest.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Section section_of(int rank) {
  return {.tensors = {{"cpu", torch::full({5}, rank, torch::kUInt8)}}, .values = {{"rank", rank}}};
}

class RankState : public Item {
 public:
  explicit RankState(Kind kind, int rank = 0) : kind_(kind), rank_(rank) {}
  std::string type() const override { return "random"; }
  Kind kind() const override { return kind_; }
  Section save() override { return section_of(rank_); }
  void check(const Section& /*saved*/) override {}
  void load(const Section& /*saved*/) override {}

 private:
  Kind kind_;
  int rank_;
};

std::vector<NamedItem> items(Item::Kind kind, int rank = 0) {
  std::vector<NamedItem> items;
  items.push_back({"random", std::make_unique<RankState>(kind, rank)});
  return items;
}

/// A checkpoint.
struct Saved {
  void add(int rank, const std::vector<OutgoingFile>& files) {
    for (const OutgoingFile& file : files) {
      manifest.files.push_back(
          {file.name, file.item, rank, file.bytes.size(), digest_of(file.bytes), file.ranks});
      write_file_atomically(folder / file.name,
                            {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()});
    }
  }
  void expect(int ranks) {
    const ItemFiles files(FileSystem::real(), folder.path(), manifest, "random", progress);
    ASSERT_EQ(files.ranks(), ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      FileBuffer bytes;
      files.read(files.of_rank(rank), bytes);
      const Section section = section_in(files.of_rank(rank), bytes.bytes(), rank);
      EXPECT_EQ(section.values.at("rank"), rank);
      EXPECT_TRUE(torch::equal(tensor_in(section, "cpu"), tensor_in(section_of(rank), "cpu"))) << rank;
    }
    const Headers headers = read_headers(FileSystem::real(), {folder.path(), manifest}, progress);
    EXPECT_EQ(headers.bytes.size(), 1U) << "the first file describes the item";
    const SavedItem item = saved_items(headers).at("random");
    EXPECT_EQ(item.section.values.at("rank"), 0);
    EXPECT_TRUE(tensor_in(item.section, "cpu").is_meta());
  }
  testing::TemporaryFolder folder;
  FileProgress progress;
  Manifest manifest;
};

TEST(FilesOfItems, TheRanksOfANodeShareAFileAndNeedNotBeNeighbours) {
  const auto state = items(Item::Kind::per_node);
  Saved saved;
  for (const int node : {0, 1}) {
    std::deque<FileBuffer> buffers;
    const NodeSections of_node = {{"random", {{node, section_of(node)}, {node + 2, section_of(node + 2)}}}};
    const auto files = snapshot(state, node, of_node, buffers);
    ASSERT_EQ(files.size(), 1U);
    saved.add(node, files);
    EXPECT_TRUE(snapshot(state, node + 2, {}, buffers).empty()) << "its node's first rank writes for it";
  }
  saved.expect(4);
}

TEST(FilesOfItems, AFileOfEachRankIsReadToo) {
  Saved saved;
  for (const int rank : {0, 1}) {
    std::deque<FileBuffer> buffers;
    saved.add(rank, snapshot(items(Item::Kind::per_rank, rank), rank, {}, buffers));
  }
  saved.expect(2);
}

TEST(FilesOfItems, AMissingRankIsNamed) {
  const NodeSections of_node = {{"random", {{0, section_of(0)}, {2, section_of(2)}}}};
  std::deque<FileBuffer> buffers;
  Saved saved;
  saved.add(0, snapshot(items(Item::Kind::per_node), 0, of_node, buffers));
  EXPECT_THAT([&] { saved.expect(3); }, ThrowsMessage<Damaged>(HasSubstr("'random' of rank 1")));
}

TEST(FilesOfItems, SectionsAreGatheredOnTheFirstRankOfTheNode) {
  const auto node = comm::make_single_communicator("n1");
  const NodeSections gathered = gather_sections(items(Item::Kind::per_node, 7), 7, *node);
  ASSERT_EQ(gathered.at("random").size(), 1U);
  EXPECT_TRUE(
      torch::equal(tensor_in(gathered.at("random").at(7), "cpu"), torch::full({5}, 7, torch::kUInt8)));
  EXPECT_TRUE(gather_sections(items(Item::Kind::per_rank), 0, *node).empty());
}

}  // namespace
}  // namespace lockstep::checkpoint
