#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <numeric>
#include <string>

#include "common/error.h"
#include "examples/text_lm/tokens_of_page.h"

namespace lockstep::text_lm {
namespace {

using ::testing::ElementsAre;

class Lines : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return at_ == 200; }
  void Next() override { line_ = line(++at_); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  static std::string line(int i) {
    return "the call open" + std::to_string(i % 7) + " returns a file descriptor";
  }

  int at_ = 0;
  std::string line_ = line(0);
};

std::string train(const std::string& extra) {
  Lines lines;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--model_type=bpe --vocab_size=60 --hard_vocab_limit=false --minloglevel=2 --normalization_rule_name=identity " +
          extra,
      &lines, &model);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return model;
}

class TokensOfPage : public ::testing::Test {
 protected:
  void load(const std::string& extra) { ASSERT_TRUE(model_.LoadFromSerializedProto(train(extra)).ok()); }

  std::string text(const std::vector<std::uint16_t>& tokens) {
    std::string text;
    EXPECT_TRUE(model_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text).ok());
    return text;
  }

  sentencepiece::SentencePieceProcessor model_;
};

TEST_F(TokensOfPage, KeepsTextAndLinesBetweenBeginAndEnd) {
  load("--user_defined_symbols=<n>");
  const auto tokens = tokens_of_page(model_, "the file\nreturns");
  EXPECT_EQ(tokens.front(), model_.bos_id());
  EXPECT_EQ(tokens.back(), model_.eos_id());
  EXPECT_EQ(text(tokens), "the file<n> returns<n>");
}

TEST_F(TokensOfPage, ALastNewlineAddsNoLine) {
  load("--user_defined_symbols=<n>");
  EXPECT_EQ(tokens_of_page(model_, "the file\n"), tokens_of_page(model_, "the file"));
}

TEST_F(TokensOfPage, RefusesATokenizerWithoutNewline) {
  load("");
  EXPECT_THROW(tokens_of_page(model_, "the file"), Error);
}

TEST(Cut, PiecesAreOfAboutEqualLengthAndComplete) {
  std::vector<std::uint16_t> tokens(2049);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  const auto pieces = cut(tokens, 1024);
  ASSERT_EQ(pieces.size(), 3U);
  std::vector<std::uint16_t> joined;
  for (const auto& piece : pieces) {
    EXPECT_EQ(piece.size(), 683U);
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(joined, tokens);
}

TEST(Cut, APageThatFitsStaysWhole) {
  EXPECT_THAT(cut({1, 2, 3, 4}, 4), ElementsAre(ElementsAre(1, 2, 3, 4)));
}

TEST(KeyOfPage, HasNoDotSoThatPagesWithTheSameNameDiffer) {
  EXPECT_EQ(key_of_page("ld.so.8", 0, 1), "ld_so_8");
  EXPECT_EQ(key_of_page("open.2", 11, 12), "open_2-0012");
}

}  // namespace
}  // namespace lockstep::text_lm
