#include <numeric>

#include "common/files.h"
#include "staging/pack/formats/megatron_index.h"
#include "staging/pack/formats/megatron_writer.h"
#include "staging/pack/reader.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using staging_test::bytes_of;  // not pack::bytes_of()
using testing::ElementsAre;

class FormatMegatron : public staging_test::StagingTest {
 protected:
  void write_pair(const std::string& index, std::size_t data_bytes) const {
    write("a.idx", index);
    write("a.bin", std::string(data_bytes, 'x'));
  }

  /// The valid index of lengths 3, 2 and 4 in i32, with these bytes at `offset` instead of the right ones.
  std::string changed(std::size_t offset, const std::string& by) const {
    return megatron_index(4, {3, 2, 4}).replace(offset, by.size(), by);
  }
};

constexpr std::size_t kLengths = 34;
constexpr std::size_t kOffsets = kLengths + std::size_t{3} * 4;
constexpr std::size_t kDocuments = kOffsets + std::size_t{3} * 8;

template <typename T>
std::span<const std::byte> tokens_of(const std::vector<T>& tokens) {
  return std::as_bytes(std::span(tokens));
}

TEST_F(FormatMegatron, TheWriterWritesTheBytesOfMegatronsOwnWriter) {
  // tests/peers/formats_vectors.py wrote the same sequences with IndexedDatasetBuilder.
  MegatronWriter writer(folder_ / "int32", TokenType::i32);
  const std::vector<std::size_t> lengths = {3, 0, 5, 1};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::int32_t> tokens(lengths[i]);
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(i * 10));
    writer.add_sequence(tokens_of(tokens));
    if (i != 0) writer.end_document();
  }
  EXPECT_EQ(writer.sequences(), 4U);
  EXPECT_EQ(writer.documents(), 3U);
  EXPECT_EQ(writer.data_bytes(), 36U);
  EXPECT_THAT(names_here(), ElementsAre(".int32.bin.unfinished"));
  writer.finish();
  const fs::path vectors = fs::path(LOCKSTEP_FORMAT_VECTORS) / "megatron";
  EXPECT_EQ(staging_test::read(folder_ / "int32.bin"), staging_test::read(vectors / "int32.bin"));
  EXPECT_EQ(staging_test::read(folder_ / "int32.idx"), staging_test::read(vectors / "int32.idx"));
}

TEST_F(FormatMegatron, WrittenSequencesAndDocumentsAreReadBack) {
  const std::vector<std::uint16_t> many(700'000, 7);  // longer than any buffer
  {
    MegatronWriter writer(folder_ / "d", TokenType::u16);
    for (int i = 0; i < 3; ++i) writer.add_sequence(tokens_of(many));
    writer.end_document();
    writer.add_sequence(tokens_of(std::vector<std::uint16_t>{1, 2}));
    writer.end_document();
    writer.finish();
  }
  EXPECT_THAT(names_here(), ElementsAre("d.bin", "d.idx"));
  const auto reader = open(folder_ / "d");
  ASSERT_EQ(reader->size(), 4U);
  EXPECT_EQ(reader->tokens(2), 700'000U);
  EXPECT_EQ(reader->tokens(3), 2U);
  std::vector<std::int64_t> tokens(2);
  widen(reader->token_type(), reader->view(3), tokens);
  EXPECT_THAT(tokens, ElementsAre(1, 2));
  const MegatronIndex index = MegatronIndex::load(folder_ / "d.idx");
  ASSERT_EQ(index.document_entries(), 3U);
  EXPECT_EQ(index.document(1), 3U);
  EXPECT_EQ(index.document(2), 4U);
  EXPECT_EQ(index.bytes().size(), 34U + 4 * 4 + 4 * 8 + 3 * 8) << "the writer adds no modes";
}

TEST_F(FormatMegatron, TokensOfAWiderTypeAreWrittenIfTheyFitAndRefusedIfNot) {
  MegatronWriter writer(folder_ / "d", TokenType::u32);
  EXPECT_EQ(writer.written_type(), TokenType::i32);
  writer.add_sequence(tokens_of(std::vector<std::uint32_t>{1, 0x7fffffffU}));
  EXPECT_THAT(
      [&] {
        writer.add_sequence(tokens_of(std::vector<std::uint32_t>{5, 6, 0x80000000U}));
      },
      ThrowsErrorWith("d.idx: token 2 of sequence 1 does not fit into type i32"));
  EXPECT_THAT([&] { writer.add_sequence(std::vector<std::byte>(7)); },
              ThrowsErrorWith("7 bytes", "not a multiple"));
  writer.end_document();
  writer.finish();
  EXPECT_EQ(open(folder_ / "d")->token_type(), TokenType::i32);
  EXPECT_THROW(MegatronWriter(folder_ / "e", TokenType::none), UsageError);
}

TEST_F(FormatMegatron, AnUnfinishedDatasetIsRemoved) {
  {
    MegatronWriter writer(folder_ / "d", TokenType::u16);
    writer.add_sequence(tokens_of(std::vector<std::uint16_t>{1}));
    EXPECT_THAT([&] { writer.finish(); }, ThrowsErrorWith("1 sequences are not in a document"));
  }
  EXPECT_THAT(names_here(), ElementsAre());
  MegatronWriter empty(folder_ / "d", TokenType::u16);
  EXPECT_THAT([&] { empty.finish(); }, ThrowsErrorWith("there are no sequences"));
}

TEST_F(FormatMegatron, FilesOfAKilledWriterAreReplacedAndFinishedFilesAreNot) {
  const auto write_one = [&] {
    MegatronWriter writer(folder_ / "d", TokenType::u16);
    writer.add_sequence(tokens_of(std::vector<std::uint16_t>{4, 5}));
    writer.end_document();
    writer.finish();
  };
  EXPECT_EQ(staging_test::in_child([&] {
              MegatronWriter writer(folder_ / "d", TokenType::u16);
              writer.add_sequence(tokens_of(std::vector<std::uint16_t>(900'000)));
              ::_exit(9);
            }),
            9);
  EXPECT_THAT(names_here(), ElementsAre(".d.bin.unfinished"));
  write("d.bin", "as after a kill between the two renames");
  write(".d.idx.unfinished", "the same");
  EXPECT_THAT([&] { MegatronWriter(folder_ / "d", TokenType::u16).finish(); },
              ThrowsErrorWith("no sequences"));
  EXPECT_THAT(names_here(), ElementsAre());
  write_one();
  EXPECT_THAT(names_here(), ElementsAre("d.bin", "d.idx"));
  EXPECT_EQ(open(folder_ / "d")->tokens(0), 2U);
  EXPECT_THAT(write_one, ThrowsErrorWith("d.idx already exists"));
  fs::remove(folder_ / "d.idx");
  EXPECT_THAT(write_one, ThrowsErrorWith("d.bin already exists"));
}

TEST_F(FormatMegatron, ASecondWriterOfADatasetIsRefused) {
  const MegatronWriter first(folder_ / "d", TokenType::u16);
  EXPECT_THAT([&] { MegatronWriter(folder_ / "d", TokenType::u16); },
              ThrowsErrorWith("written by another process"));
}

TEST_F(FormatMegatron, DamagedIndexesAreRefusedWithTheReason) {
  const auto refused = [&](const std::string& index, auto... texts) {
    write_pair(index, 36);
    EXPECT_THAT([&] { open(folder_ / "a.idx"); }, ThrowsErrorWith((folder_ / "a.idx").string(), texts...));
  };
  const std::string good = megatron_index(4, {3, 2, 4});
  refused(changed(9, bytes_of(std::uint64_t{2})), "version 2");
  refused(changed(17, "\x0b"), "type code 11 is none of Megatron's");
  refused(changed(17, std::string(1, '\0')), "type code 0 is none of Megatron's");
  refused(changed(18, bytes_of(std::uint64_t{1} << 60)), "too few for");
  refused(changed(26, bytes_of(std::uint64_t{1} << 62)), "too few for");
  refused(changed(kLengths + 4, bytes_of(std::int32_t{-2})), "sequence 1 has -2 tokens");
  refused(changed(kOffsets + 8, bytes_of(std::int64_t{16})), "sequence 1 begins at byte 16", "ends at 12");
  refused(changed(kOffsets, bytes_of(std::int64_t{4})), "sequence 0 begins at byte 4");
  refused(changed(kDocuments + 8, bytes_of(std::int64_t{4})), "document 1 begins at sequence 4");
  refused(changed(kDocuments + 16, bytes_of(std::int64_t{-1})), "document 2 begins at sequence -1");
  refused(changed(kDocuments + 24, bytes_of(std::int64_t{2})), "documents end at sequence 2", "3 sequences");
  refused(changed(kDocuments, bytes_of(std::int64_t{1})), "document 0 begins at sequence 1");
  refused(good.substr(0, good.size() - 1), "too few for");
  refused(good + "xx", "2 bytes are left over");
  write_pair(good + "\1\2\3", 36);
  EXPECT_EQ(open(folder_ / "a.idx")->size(), 3U);
}

TEST_F(FormatMegatron, OpenRefusesDataOfAnotherLength) {
  write_pair(megatron_index(4, {3, 2, 4}), 35);
  EXPECT_THAT([&] { open(folder_); }, ThrowsErrorWith("a.bin", "a.idx", "sequence is 2 at offset 20"));
  write("a.bin", std::string(19, 'x'));
  EXPECT_THAT([&] { open(folder_); }, ThrowsErrorWith("sequence is 1 at offset 12"));
  write("a.bin", "");
  EXPECT_THAT([&] { open(folder_); }, ThrowsErrorWith("sequence is 0 at offset 0"));
}

TEST_F(FormatMegatron, ReadOfDataTruncatedInUseThrows) {
  write_pair(megatron_index(4, {3, 2, 4}), 36);
  const auto reader = open(folder_);
  std::vector<std::byte> payload(16);
  reader->read(2, payload);
  fs::resize_file(folder_ / "a.bin", 30);
  EXPECT_THAT([&] { reader->read(2, payload); }, ThrowsErrorWith("a.bin, sample 2, offset 20", "truncated"));
  EXPECT_THAT([&] { reader->verify(); }, ThrowsErrorWith("a.bin", "truncated"));
}

TEST_F(FormatMegatron, PairsInAFolderAreOneDataSet) {
  write("m/a.idx", megatron_index(8, {3, 2}));
  write("m/a.bin", "aabbccddee");
  write("m/sub/b.idx", megatron_index(8, {1}));
  write("m/sub/b.bin", "ff");
  write("m/tokenizer.json", "{}");
  const auto reader = open(folder_ / "m");
  ASSERT_EQ(reader->size(), 3U);
  EXPECT_EQ(reader->tokens(0), 3U);
  EXPECT_EQ(reader->parts(2)[0].shard, "sub/b.bin");
  EXPECT_EQ(reader->key(2), "2");
  std::vector<std::byte> payload(2);
  reader->read(2, payload);
  EXPECT_EQ(static_cast<char>(payload[0]), 'f');
  EXPECT_THAT([&] { (void)reader->tokens(3); }, ThrowsErrorWith("sample 3"));
}

}  // namespace
}  // namespace lockstep::pack
