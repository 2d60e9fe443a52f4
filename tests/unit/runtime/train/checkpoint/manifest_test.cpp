// A manifest is read as it was written, or refused.
#include "runtime/train/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;
using ::testing::ThrowsMessage;

const Manifest kManifest{.step = 123,
                         .ranks = 2,
                         .training = "5f0c",
                         .files = {{"model.safetensors", "model", 0, 1000, "aa"},
                                   {"random-00001.safetensors", "random", 1, 20, "bb", {1, 3}}}};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest read = manifest_from_text(to_text(kManifest));
  EXPECT_EQ(read.step, 123);
  EXPECT_EQ(read.ranks, 2);
  EXPECT_EQ(read.training, "5f0c");
  ASSERT_EQ(read.files.size(), 2U);
  EXPECT_EQ(read.files[1].name, "random-00001.safetensors");
  EXPECT_EQ(read.files[1].item, "random");
  EXPECT_EQ(read.files[1].rank, 1);
  EXPECT_EQ(read.files[1].ranks, (std::vector<int>{1, 3}));
  EXPECT_TRUE(read.files[0].ranks.empty());
  EXPECT_EQ(read.files[0].bytes, 1000U);
  EXPECT_EQ(read.files[0].digest, "aa");
}

TEST(Manifest, ThatWasModifiedIsDamaged) {
  const std::string text = to_text(kManifest);
  for (const auto& [from, to] : {std::pair{"123", "124"}, {"\"ranks\": 2", "\"ranks\": 3"}, {"1000", "1001"}})
    EXPECT_THAT([&] { manifest_from_text(replaced(text, from, to)); }, Throws<Damaged>());
  EXPECT_THAT([&] { manifest_from_text(text.substr(0, text.size() / 2)); }, Throws<Damaged>());
  for (const char* other : {"", "[]", "{}", "{\"kind\":\"another\"}"})
    EXPECT_THAT([&] { manifest_from_text(other); }, Throws<Damaged>()) << other;
}

TEST(Manifest, OfAnotherFormatVersionIsRefusedAndNotCalledDamaged) {
  const std::string text = replaced(to_text(kManifest), "\"format\": 2", "\"format\": 3");
  try {
    manifest_from_text(text);
    FAIL();
  } catch (const Damaged&) {
    FAIL() << "it would be skipped";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("format version 3, but this program reads version 2"));
  }
}

TEST(FolderNames, SortAndCountAsTheirSteps) {
  EXPECT_EQ(folder_name(7), "step-000007");
  EXPECT_EQ(folder_name(12'345'678), "step-12345678");
  for (const std::int64_t step : {0L, 7L, 999'999L, 12'345'678L}) EXPECT_EQ(step_of(folder_name(step)), step);
  for (const char* other : {"step-7", "step-", ".step-000007.ab", "step-00000x", "model", "step--00001"})
    EXPECT_EQ(step_of(other), -1) << other;
}

// The values of `printf abc | xxhsum -H2` and of an empty file.
TEST(Digest, IsTheOneOfXxhsum) {
  EXPECT_EQ(digest_of(std::string_view("abc")), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(digest_of(std::string_view("")), "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace lockstep::checkpoint
