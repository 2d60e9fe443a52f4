// Reads files that the formats' own packages wrote (tests/data/formats).

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/files.h"
#include "staging/pack/formats/format_check.h"
#include "staging/pack/reader.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using staging_test::ThrowsErrorWith;

const fs::path kVectors = LOCKSTEP_FORMAT_VECTORS;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

std::string read_part(const Reader& reader, std::size_t i, std::size_t p) {
  std::vector<std::byte> payload(reader.parts(i).at(p).bytes);
  reader.read_part(i, p, payload);
  return hex(payload);
}

std::string hex_of_sample(const Reader& reader, std::size_t i) {
  std::vector<std::byte> payload(reader.bytes(i));
  reader.read(i, payload);
  return hex(payload);
}

/// The entries of expected.json, by source.
const std::map<std::string, nlohmann::json>& all_expected() {
  static const auto* expected = [] {
    auto* made = new std::map<std::string, nlohmann::json>();
    for (const nlohmann::json& entry : nlohmann::json::parse(read_text_file(kVectors / "expected.json")))
      made->emplace(entry.at("source").get<std::string>(), entry);
    return made;
  }();
  return *expected;
}

/// Copies the vectors, since readers store indexes beside the data.
class FormatVectors : public staging_test::StagingTest, public testing::WithParamInterface<std::string> {
 protected:
  FormatVectors() {
    copy_to("v");
    source_ = (folder_ / "v").string() + "/" + GetParam();
  }
  void copy_to(const fs::path& name) const {
    const fs::path top = *fs::path(GetParam()).begin();
    fs::create_directories(folder_ / name);
    fs::copy(kVectors / top, folder_ / name / top, fs::copy_options::recursive);
  }
  std::string source_;
};

TEST_P(FormatVectors, HoldTheSamplesThatTheirOwnPackageReads) {
  const nlohmann::json& expected = all_expected().at(GetParam());
  const auto reader = open(source_);
  const auto& samples = expected.at("samples");
  ASSERT_EQ(reader->size(), samples.size());
  EXPECT_EQ(name_of(reader->token_type()), expected.at("tokens").get<std::string>());
  EXPECT_EQ(reader->token_bytes(), bytes_of(reader->token_type()));
  EXPECT_EQ(reader->can_view(), expected.at("view").get<bool>());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto sample = samples[i].get<std::string>();
    EXPECT_EQ(reader->bytes(i), sample.size() / 2) << i;
    EXPECT_EQ(hex_of_sample(*reader, i), sample) << i;
    EXPECT_EQ(read_part(*reader, i, 0), sample) << i;
    if (reader->can_view()) {
      EXPECT_EQ(hex(reader->view(i)), sample) << i;
    }
    if (reader->token_bytes() != 0) {
      EXPECT_EQ(reader->tokens(i) * static_cast<unsigned>(reader->token_bytes()), reader->bytes(i));
    }
    if (expected.contains("keys")) {
      EXPECT_EQ(reader->key(i), expected["keys"][i].get<std::string>());
    }
  }
  EXPECT_THAT([&] { (void)reader->bytes(samples.size()); }, ThrowsErrorWith("no sample"));
  std::uint64_t read = 0;
  EXPECT_NO_THROW(reader->verify([&](std::uint64_t bytes) { read += bytes; }));
  EXPECT_GT(read, 0U);
}

TEST_P(FormatVectors, AreComplete) {
  const std::string file = source_.substr(0, source_.find(":/"));
  const Contents contents = contents_of(file);
  EXPECT_NE(contents.format, Format::plain);
  EXPECT_NE(contents.format, Format::tar);
  EXPECT_NO_THROW(check_complete(contents.folder, contents));
}

TEST_P(FormatVectors, HaveTheSameFingerprintAsACopyAndAnotherOneThanOtherContent) {
  const std::string fingerprint = open(source_)->fingerprint();
  EXPECT_EQ(fingerprint.size(), 32U);
  copy_to("copy");
  EXPECT_EQ(open((folder_ / "copy").string() + "/" + GetParam())->fingerprint(), fingerprint);
  static std::map<std::string, std::string> seen;
  const auto [other, is_new] = seen.emplace(fingerprint, source_.substr(folder_.string().size()));
  EXPECT_TRUE(is_new || other->second == source_.substr(folder_.string().size())) << other->second;
}

TEST_P(FormatVectors, CanBeReadFromManyThreads) {
  const auto reader = open(source_);
  const auto& samples = all_expected().at(GetParam()).at("samples");
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < samples.size(); ++i) {
          if (hex_of_sample(*reader, i) != samples[i].get<std::string>()) ++wrong;
          (void)reader->key(i);
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

std::vector<std::string> sources() {
  std::vector<std::string> sources;
  for (const auto& [source, expected] : all_expected()) sources.push_back(source);
  return sources;
}

INSTANTIATE_TEST_SUITE_P(All, FormatVectors, testing::ValuesIn(sources()), [](const auto& param) {
  std::string name = param.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

class FormatRefused : public staging_test::StagingTest {};

TEST_F(FormatRefused, FilesThatARecipeReadsAreRefusedWithItsName) {
  write("n/a.npy", "\x93NUMPY");
  write("m/index.json", "{}");
  write("m/shard.00000.mds", "");
  EXPECT_THAT([&] { open(folder_ / "n"); }, ThrowsErrorWith("a.npy", "examples/recipes/from_npy.py"));
  EXPECT_THAT([&] { open(folder_ / "m"); },
              ThrowsErrorWith("shard.00000.mds", "examples/recipes/from_mds.py"));
}

TEST_F(FormatRefused, OneOfSeveralDatasetsMustBeNamed) {
  const fs::path file = kVectors / "hdf5/several.h5";
  EXPECT_THAT([&] { open(file); }, ThrowsErrorWith("several.h5", "/document", "/pictures", "name one"));
  EXPECT_THAT([&] { open(file.string() + ":/none"); }, ThrowsErrorWith("has no dataset /none"));
  EXPECT_THAT([&] { open(file.string() + ":/big"); }, ThrowsErrorWith("several.h5:/big", "big-endian"));
}

TEST_F(FormatRefused, AnHdf5LinkToAnotherFileIsNotFollowed) {
  EXPECT_THAT([&] { open((kVectors / "hdf5/several.h5").string() + ":/elsewhere"); },
              ThrowsErrorWith("has no dataset /elsewhere"));
}

TEST_F(FormatRefused, ANamedDatabaseIsRefusedByName) {
  EXPECT_THAT([&] { open(kVectors / "lmdb_refused.mdb"); }, ThrowsErrorWith("the named database 'train'"));
}

TEST_F(FormatRefused, AFolderOfSeveralFormatsIsRefused) {
  fs::create_directories(folder_ / "m");
  fs::copy(kVectors / "recordio/train.rec", folder_ / "m");
  fs::copy(kVectors / "hdf5/only.h5", folder_ / "m");
  EXPECT_THAT([&] { open(folder_ / "m"); }, ThrowsErrorWith("several formats (hdf5, recordio)"));
}

TEST_F(FormatRefused, FilesOfDifferentTokensAreNotOneDataSet) {
  EXPECT_THAT([&] { open(kVectors / "megatron"); }, ThrowsErrorWith("holds f32", "only data of one type"));
}

}  // namespace
}  // namespace lockstep::pack
