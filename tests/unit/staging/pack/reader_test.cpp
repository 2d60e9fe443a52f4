#include "staging/pack/reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "common/files.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class PackReader : public staging_test::StagingTest {};

TEST_F(PackReader, ReadViewAndTheRecordedOffsetGiveTheSameSamples) {
  const fs::path pack = make_large_pack("p", 50);
  const auto reader = open(pack);
  ASSERT_EQ(reader->size(), 50U);
  for (std::size_t i = 0; i < reader->size(); ++i) {
    const std::string expected =
        staging_test::read(folder_ / "p.src" / (std::string(reader->key(i)) + ".bin"));
    EXPECT_EQ(read_sample(*reader, i), expected);
    EXPECT_EQ(text_of(reader->view(i)), expected);
    const Part part = reader->parts(i)[0];
    EXPECT_EQ(staging_test::read(pack / part.shard).substr(part.offset, part.bytes), expected);
  }
  std::uint64_t read = 0;
  reader->verify([&](std::uint64_t bytes) { read += bytes; });
  std::uint64_t shards = 0;
  for (const auto& file : fs::directory_iterator(pack)) {
    if (file.path().extension() == ".tar") shards += file.file_size();
  }
  EXPECT_EQ(read, shards);
}

TEST_F(PackReader, CountsTokens) {
  const auto reader =
      open(make_pack("p", {{"a.tok", "12345678"}, {"b.tok", "1234"}, {"c.tok", ""}}, 1 << 20, 4));
  EXPECT_EQ(reader->token_bytes(), 4);
  EXPECT_EQ(reader->tokens(0), 2U);
  EXPECT_EQ(reader->tokens(1), 1U);
  EXPECT_EQ(reader->tokens(2), 0U);
  EXPECT_EQ(open(make_pack("q", {{"a", "1234"}}))->tokens(0), 0U);
}

TEST_F(PackReader, ReadsTheSecondPart) {
  const auto reader = open(make_pack("p", {{"cat.jpg", "picture"}, {"cat.json", "{}"}}));
  ASSERT_EQ(reader->size(), 1U);
  ASSERT_EQ(reader->parts(0).size(), 2U);
  EXPECT_EQ(reader->parts(0)[1].kind, "json");
  std::vector<std::byte> payload(2);
  reader->read_part(0, 1, payload);
  EXPECT_EQ(text_of(payload), "{}");
}

TEST_F(PackReader, OneShardHasItsOwnSamplesOnly) {
  const fs::path pack = make_large_pack("p", 50);
  const auto whole = open(pack);
  const auto shard = open(pack / "shard-000001.tar");
  ASSERT_LT(shard->size(), whole->size());
  std::size_t first = 0;
  while (whole->parts(first)[0].shard != "shard-000001.tar") ++first;
  EXPECT_EQ(shard->key(0), whole->key(first));
  EXPECT_EQ(read_sample(*shard, 0), read_sample(*whole, first));
  EXPECT_NE(shard->fingerprint(), whole->fingerprint());
  EXPECT_THAT([&] { (void)shard->bytes(shard->size()); }, ThrowsErrorWith("there is no sample"));
}

TEST_F(PackReader, OpensByItsIndexFileAndThroughLinksToShards) {
  const fs::path pack = make_large_pack("p", 30);
  EXPECT_EQ(open(pack / "index.lockstep")->size(), 30U);
  fs::create_directory(folder_ / "linked");
  for (const fs::directory_entry& entry : fs::directory_iterator(pack)) {
    fs::create_symlink(entry.path(), folder_ / "linked" / entry.path().filename());
  }
  const auto linked = open(folder_ / "linked");
  linked->verify();
  EXPECT_EQ(linked->fingerprint(), open(pack)->fingerprint());
}

TEST_F(PackReader, ReadsFromManyThreadsAtOnce) {
  const auto reader = open(make_large_pack("p", 64));
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    threads.reserve(8);
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t n = 0; n < reader->size(); ++n) {
          const std::size_t i = (n * 7 + static_cast<std::size_t>(t)) % reader->size();
          if (read_sample(*reader, i) != text_of(reader->view(i))) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(PackReader, SourcesThatAreNotPackedAreRefusedByName) {
  write("plain/a", "x");
  fs::create_directory(folder_ / "empty");
  const fs::path pack = make_pack("p", {{"a", "x"}});
  write("p/other.tar", "x");
  EXPECT_THAT([&] { open(folder_ / "plain"); },
              ThrowsErrorWith("not packed: " + (folder_ / "plain").string() + " has no index.lockstep",
                              "lockstep-pack create"));
  EXPECT_THAT([&] { open(folder_ / "plain/a"); }, ThrowsErrorWith("not packed", "lockstep-pack create"));
  EXPECT_THAT([&] { open(folder_ / "empty"); }, ThrowsErrorWith((folder_ / "empty").string(), "is empty"));
  EXPECT_THAT([&] { open(folder_ / "none"); }, ThrowsErrorWith((folder_ / "none").string(), "No such file"));
  write("photos.zip", "x");
  EXPECT_THAT([&] { open(folder_ / "photos.zip"); },
              ThrowsErrorWith("photos.zip: unpack it", "lockstep-pack create"));
  EXPECT_THAT([&] { open(pack / "other.tar"); }, ThrowsErrorWith("other.tar is not a shard of"));
}

TEST_F(PackReader, ATruncatedShardIsRefusedWithItsFirstLostSample) {
  const fs::path pack = make_large_pack("p", 10);
  const Part last = open(pack)->parts(9)[0];
  fs::resize_file(pack / "shard-000000.tar", last.offset + 10);
  EXPECT_THAT([&] { open(pack); }, ThrowsErrorWith((pack / "shard-000000.tar").string(), "truncated",
                                                   "sample is 9 (0009)", std::to_string(last.offset)));
}

TEST_F(PackReader, AMissingAndALongerShardAreRefused) {
  const fs::path pack = make_large_pack("p", 40);
  fs::resize_file(pack / "shard-000001.tar", 1 << 20);
  EXPECT_THAT([&] { open(pack); }, ThrowsErrorWith("shard-000001.tar"));
  fs::remove(pack / "shard-000001.tar");
  EXPECT_THAT([&] { open(pack); }, ThrowsErrorWith("shard-000001.tar", "No such file"));
}

TEST_F(PackReader, ReadOfAShardTruncatedInUseThrows) {
  const fs::path pack = make_pack("p", {{"a", std::string(9000, 'x')}});
  const auto reader = open(pack);
  read_sample(*reader, 0);
  fs::resize_file(pack / "shard-000000.tar", 1000);
  EXPECT_THAT([&] { read_sample(*reader, 0); },
              ThrowsErrorWith("shard-000000.tar, sample 0 (a), offset 512", "truncated"));
}

TEST_F(PackReader, ReadViewAndVerifyNameTheSampleWithAFlippedBit) {
  const fs::path pack = make_large_pack("p", 40);
  const Part part = open(pack)->parts(33)[0];
  flip_byte(pack / part.shard, part.offset + 77);
  const auto reader = open(pack);
  const auto names_it = ThrowsErrorWith(
      (pack / part.shard).string() + ", sample 33 (0033), offset " + std::to_string(part.offset),
      "does not match its index");
  EXPECT_THAT([&] { read_sample(*reader, 33); }, names_it);
  EXPECT_THAT([&] { (void)reader->view(33); }, names_it);
  EXPECT_NO_THROW(read_sample(*reader, 32));
  EXPECT_NO_THROW((void)reader->view(34));
  EXPECT_THAT([&] { reader->verify(); },
              ThrowsErrorWith(std::string(part.shard), "sample 33 (0033.bin)", std::to_string(part.offset)));
}

TEST_F(PackReader, SamplesAreNotCheckedIfTheCheckIsSwitchedOff) {
  const fs::path pack = make_pack("p", {{"a", "alpha"}});
  flip_byte(pack / "shard-000000.tar", 512);
  const auto unchecked = open(pack, {.check_digests = false});
  EXPECT_EQ(read_sample(*unchecked, 0).substr(1), "lpha");
  EXPECT_EQ(text_of(unchecked->view(0)).substr(1), "lpha");
  EXPECT_EQ(text_of(open(pack)->unchecked_view(0)).substr(1), "lpha");
  EXPECT_THAT([&] { unchecked->verify(); }, ThrowsErrorWith("sample 0 (a)"));
}

TEST_F(PackReader, AFlippedBitInALaterPartIsDetected) {
  const fs::path pack = make_pack("p", {{"cat.jpg", "picture"}, {"cat.json", "{}"}});
  const auto reader = open(pack);
  flip_byte(pack / "shard-000000.tar", reader->parts(0)[1].offset);
  EXPECT_EQ(read_sample(*reader, 0), "picture");
  std::vector<std::byte> payload(2);
  EXPECT_THAT([&] { reader->read_part(0, 1, payload); }, ThrowsErrorWith("sample 0 (cat)", "offset 1536"));
}

TEST_F(PackReader, AShardOverwrittenWhileInUseIsDetected) {
  const fs::path pack = make_large_pack("p", 3);
  const auto reader = open(pack);
  EXPECT_EQ(text_of(reader->view(1)), read_sample(*reader, 1));
  const UniqueFd shard = open_file(pack / "shard-000000.tar", O_WRONLY);
  const std::string other(3000, '!');
  ASSERT_EQ(::pwrite(shard.get(), other.data(), other.size(), static_cast<off_t>(reader->parts(1)[0].offset)),
            3000);
  EXPECT_THAT([&] { (void)reader->view(1); }, ThrowsErrorWith("sample 1 (0001)"));
  EXPECT_THAT([&] { read_sample(*reader, 1); }, ThrowsErrorWith("sample 1 (0001)"));
}

TEST_F(PackReader, VerifyDetectsDamageBetweenSamples) {
  const fs::path pack = make_large_pack("p", 3);
  flip_byte(pack / "shard-000000.tar", 300);  // in the first header's unused bytes
  EXPECT_THAT([&] { open(pack)->verify(); }, ThrowsErrorWith("shard-000000.tar"));
}

}  // namespace
}  // namespace lockstep::pack
