#include "staging/pack/index.h"

#include <cstring>
#include <random>

#include "common/error.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

using staging_test::ThrowsErrorWith;

/// Three samples in two shards, the second with two parts.
std::string small_index(int token_bytes = 0) {
  IndexBuilder builder(token_bytes);
  builder.begin_shard("shard-000000.tar");
  builder.add_sample("a");
  builder.add_part("txt", 512, 8, 1);
  builder.add_sample("d/b");
  builder.add_part("json", 1536, 4, 2);
  builder.add_part("txt", 2560, 0, 3);
  builder.end_shard(4096, Digest{1});
  builder.begin_shard("shard-000001.tar");
  builder.add_sample("c");
  builder.add_part("", 512, 12, 4);
  builder.end_shard(2048, Digest{2});
  return builder.finish();
}

/// An index parsed from an aligned copy of the bytes.
class Parsed {
 public:
  explicit Parsed(const std::string& bytes)
      : words_(bytes.size() / 8 + 1), bytes_(std::as_writable_bytes(std::span(words_)).first(bytes.size())) {
    std::memcpy(bytes_.data(), bytes.data(), bytes.size());
  }
  Index index() const { return Index::parse(bytes_, "index.lockstep"); }

 private:
  std::vector<std::uint64_t> words_;
  std::span<std::byte> bytes_;
};

/// The bytes of a malicious index: any content, but a correct checksum.
std::string with_correct_checksum(std::string bytes) {
  if (bytes.size() < sizeof(Digest)) return bytes;
  const Digest digest = digest_of(std::as_bytes(std::span(bytes)).first(bytes.size() - sizeof(Digest)));
  std::memcpy(bytes.data() + bytes.size() - sizeof(Digest), digest.data(), sizeof(Digest));
  return bytes;
}

TEST(PackIndex, HoldsWhatTheBuilderGot) {
  const Parsed parsed(small_index(4));
  const Index index = parsed.index();
  EXPECT_EQ(index.token_bytes(), 4);
  ASSERT_EQ(index.shards(), 2U);
  ASSERT_EQ(index.samples(), 3U);
  EXPECT_EQ(index.shard_name(1), "shard-000001.tar");
  EXPECT_EQ(index.shard(1).size, 2048U);
  EXPECT_EQ(index.shard(1).digest, Digest{2});
  EXPECT_EQ(index.first_sample(1), 2U);
  EXPECT_EQ(index.key(1), "d/b");
  EXPECT_EQ(index.first_part(2) - index.first_part(1), 2U);
  EXPECT_EQ(index.kind(index.part(2)), "txt");
  EXPECT_EQ(index.kind(index.part(3)), "");
  EXPECT_EQ(index.part(1).offset, 1536U);
  EXPECT_EQ(index.find_shard("shard-000001.tar"), 1U);
  EXPECT_EQ(index.find_shard("none"), 2U);
}

TEST(PackIndex, AnyFlippedBitIsDetected) {
  const std::string good = small_index();
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    const Parsed parsed(bad);
    EXPECT_THROW(parsed.index(), Error) << "byte " << at;
  }
}

TEST(PackIndex, EveryTruncationIsDetected) {
  const std::string good = small_index();
  for (std::size_t size = 0; size < good.size(); ++size) {
    const Parsed parsed(good.substr(0, size));
    EXPECT_THROW(parsed.index(), Error) << size << " bytes";
  }
}

TEST(PackIndex, AnotherVersionIsNamed) {
  std::string bytes = small_index();
  bytes[offsetof(layout::Header, version)] = 7;
  const Parsed parsed(bytes);
  EXPECT_THAT([&] { parsed.index(); }, ThrowsErrorWith("version 7 is not supported"));
}

TEST(PackIndex, ShardsKindsAndPartsThatCannotBeAreNamed) {
  struct Case {
    std::string shard, kind;
    std::uint64_t offset, size;
    const char* error;
  };
  std::vector<Case> cases{{"s.tar", "txt", 512, 516, "outside the shard"},
                          {"s.tar", "txt", 512, 6, "not a multiple of the token size"}};
  for (const char* name : {"../s.tar", "/s.tar", "d/s.tar", "..", "index.lockstep"})
    cases.push_back({name, "", 0, 0, "damaged index"});
  for (const std::string& kind : {std::string("/../../x"), std::string("a/b"), std::string("a\0b", 3)})
    cases.push_back({"s.tar", kind, 0, 0, "kind 0 contains"});
  for (const Case& one : cases) {
    SCOPED_TRACE(one.shard + " " + one.kind);
    IndexBuilder builder(4);
    builder.begin_shard(one.shard);
    builder.add_sample("a");
    builder.add_part(one.kind, one.offset, one.size, 0);
    builder.end_shard(1024, {});
    const Parsed parsed(builder.finish());
    EXPECT_THAT([&] { parsed.index(); }, ThrowsErrorWith(one.error));
  }
}

TEST(PackIndex, AnIndexWithoutSamplesIsRefused) {
  const Parsed parsed(IndexBuilder(0).finish());
  EXPECT_THAT([&] { parsed.index(); }, ThrowsErrorWith("holds no samples"));
}

TEST(PackIndex, TheFingerprintDependsOnDataAndOrderButNotOnOffsets) {
  const auto fingerprint = [](std::initializer_list<std::pair<const char*, std::uint64_t>> samples,
                              std::uint64_t gap) {
    IndexBuilder builder(0);
    std::uint64_t offset = gap;
    builder.begin_shard("s.tar");
    for (const auto& [key, xxh3] : samples) {
      builder.add_sample(key);
      builder.add_part("bin", offset, 4, xxh3);
      offset += gap;
    }
    builder.end_shard(offset, {});
    const Parsed parsed(builder.finish());
    return parsed.index().fingerprint(0, samples.size());
  };
  const std::string first = fingerprint({{"a", 1}, {"b", 2}}, 512);
  EXPECT_EQ(fingerprint({{"a", 1}, {"b", 2}}, 1024), first);
  EXPECT_NE(fingerprint({{"b", 2}, {"a", 1}}, 512), first);
  EXPECT_NE(fingerprint({{"a", 1}, {"b", 3}}, 512), first);
  EXPECT_NE(fingerprint({{"a", 1}, {"c", 2}}, 512), first);
}

TEST(PackIndex, ASubsetHoldsOnlyTheSamplesOfItsShards) {
  const Parsed whole(small_index());
  const Parsed part(whole.index().subset({1}));
  const Index index = part.index();
  ASSERT_EQ(index.samples(), 1U);
  EXPECT_EQ(index.key(0), "c");
  EXPECT_EQ(index.shard_name(0), "shard-000001.tar");
  EXPECT_EQ(index.fingerprint(0, 1), whole.index().fingerprint(2, 3));
}

/// Reads everything in an index, as a reader would.
void use(const Index& index) {
  std::uint64_t sum = 0;
  for (std::size_t s = 0; s < index.shards(); ++s) sum += index.shard_name(s).size() + index.shard(s).size;
  for (std::size_t i = 0; i < index.samples(); ++i) {
    for (const char byte : index.key(i)) sum += static_cast<unsigned char>(byte);
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      sum += index.kind(part).size();
      ASSERT_LT(part.shard, index.shards());
      ASSERT_LE(part.offset + part.size, index.shard(part.shard).size);
      ASSERT_GE(part.offset + part.size, part.offset);
    }
  }
  EXPECT_FALSE(index.fingerprint(0, index.samples()).empty() && sum == 0);
}

TEST(PackIndex, NoMutationLeadsOutsideTheBounds) {
  std::mt19937 random(20240229);
  const std::string good = small_index();
  const std::vector<std::uint64_t> tempting = {0,          1,          0xff,       0x7fffffff, 0xffffffff,
                                               1ULL << 47, 1ULL << 48, 1ULL << 63, ~0ULL};
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int n = 0; n < changes; ++n) {
      if (random() % 2 == 0) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      } else {
        const std::uint64_t value = tempting[random() % tempting.size()];
        std::memcpy(bytes.data() + random() % (bytes.size() / 8) * 8, &value, 8);
      }
    }
    if (random() % 16 == 0) bytes.resize(random() % bytes.size());
    const Parsed parsed(with_correct_checksum(bytes));
    try {
      const Index index = parsed.index();
      ++accepted;
      use(index);
    } catch (const Error&) {
      continue;
    }
  }
  EXPECT_GT(accepted, 100) << "no mutation passes the first check";
}

}  // namespace
}  // namespace lockstep::pack
