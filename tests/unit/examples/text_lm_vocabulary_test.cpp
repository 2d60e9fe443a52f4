#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/error.h"
#include "common/files.h"
#include "examples/text_lm/vocabulary.h"

namespace lockstep::text_lm {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TextLmVocabulary : public ::testing::Test {
 protected:
  TextLmVocabulary() { fs::create_directories(folder_); }
  ~TextLmVocabulary() override { fs::remove_all(folder_); }

  fs::path write(const std::string& content) const {
    write_file_atomically(folder_ / "tokenizer.vocab", content);
    return folder_ / "tokenizer.vocab";
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / fmt::format("text_lm_vocabulary.{}", ::getpid());
};

TEST_F(TextLmVocabulary, RestoresBlanksNewlinesAndBytes) {
  const Vocabulary vocabulary(
      write("<unk>\t0\n<s>\t0\n</s>\t0\n<n>\t0\n<0xC3>\t0\n<0xA9>\t0\n▁the\t-1\n▁file\t-2\ns\t-3\n▁\t-4\n"));
  EXPECT_EQ(vocabulary.size(), 10);
  EXPECT_EQ(vocabulary.begin_of_text(), 1);
  EXPECT_EQ(vocabulary.end_of_text(), 2);
  EXPECT_EQ(vocabulary.text(std::vector<int>{1, 6, 7, 8, 3, 6, 9, 4, 5, 2}), "the files\nthe é");
}

TEST_F(TextLmVocabulary, RefusesAFileWithoutTabs) {
  const auto file = write("<s>\t0\nhello\n");
  try {
    const Vocabulary vocabulary(file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(file.string() + ", line 2"));
  }
}

TEST_F(TextLmVocabulary, RefusesAListWithoutBeginAndEnd) {
  EXPECT_THROW(Vocabulary(write("a\t0\n")), Error);
}

}  // namespace
}  // namespace lockstep::text_lm
