#include "common/leaf/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(Option option, std::string_view value) {
  Settings settings;
  return message_of([&] { apply(option, value, settings); });
}

PinRequest pin(std::string_view value) {
  Settings settings;
  apply(Option::pin, value, settings);
  return settings.pin;
}

TEST(Options, TableHasTheOrderOfTheEnumeration) {
  for (std::size_t i = 0; i < kOptions; ++i)
    EXPECT_EQ(static_cast<std::size_t>(option_table().at(i).option), i);
}

TEST(Options, SourcesAreSplitAtUnescapedCommas) {
  EXPECT_THAT(split_sources("/a"), ElementsAre("/a"));
  EXPECT_THAT(split_sources("/a,b/c"), ElementsAre("/a", "b/c"));
  EXPECT_THAT(split_sources(R"(/a\,b,/c)"), ElementsAre("/a,b", "/c"));
  EXPECT_THAT(split_sources(R"(/a\b\)"), ElementsAre(R"(/a\b\)"));
  EXPECT_THAT(split_sources("none"), ElementsAre());
}

TEST(Options, JoinedSourcesSplitIntoTheSame) {
  const std::vector<std::string> sources{"/a,b", "/c d", "/e,,f"};
  EXPECT_EQ(split_sources(join_sources(sources)), sources);
  EXPECT_EQ(join_sources({}), "none");
}

TEST(Options, EmptyNamesAreRefused) {
  for (const char* value : {"", ",", "a,", ",a", "a,,b"})
    EXPECT_NE(error_of(Option::stage, value), "") << value;
}

TEST(Options, ControlCharactersAreRefused) {
  EXPECT_THAT(error_of(Option::stage, "/a\nb"), HasSubstr("control character"));
  EXPECT_THAT(error_of(Option::stage, std::string_view("/a\0b", 4)), HasSubstr("control character"));
  EXPECT_THAT(error_of(Option::pin, "auto\x7f"), HasSubstr("control character"));
}

TEST(Options, AVeryLongValueIsRefusedByAShortMessage) {
  const std::string message = error_of(Option::stage, std::string(1U << 20U, 'a'));
  EXPECT_NE(message, "");
  EXPECT_LT(message.size(), 300U);
  for (const char* before : {"", "auto,", "auto,workers="}) {
    EXPECT_LT(error_of(Option::pin, before + std::string(5000, 'a')).size(), 500U) << before;
  }
}

TEST(Options, EveryWordOfAnOptionIsReadAndReturned) {
  for (const OptionRow& row : option_table()) {
    for (const std::string_view word : words_of(row.option)) {
      Settings settings;
      apply(row.option, word, settings);
      EXPECT_EQ(word_of(row.option, settings), word) << row.name;
      EXPECT_THAT(std::string("|") + row.arguments + "[,", HasSubstr(std::string(word))) << row.name;
    }
  }
}

TEST(Options, InvalidValuesAreRefusedWithAListOfTheValidOnes) {
  EXPECT_EQ(error_of(Option::stage_verify, "fast"),
            "--stage-verify=fast is not valid; valid values: quick, full, off");
  EXPECT_EQ(error_of(Option::stage_batch, "maybe"),
            "--stage-batch=maybe is not valid; valid values: yes, no");
  EXPECT_THAT(error_of(Option::metrics, "yes"), HasSubstr("valid values: on, off"));
  EXPECT_THAT(error_of(Option::pin, "socket"), HasSubstr("valid values: auto, numa, cache, core, off"));
}

TEST(Options, PinIsReadWithItsItems) {
  EXPECT_EQ(pin("auto").policy, "auto");
  EXPECT_FALSE(pin("off").on());
  const PinRequest request = pin("core,workers=3,smt=1,explain,mem=off");
  EXPECT_EQ(request.policy, "core");
  EXPECT_EQ(request.workers, 3);
  EXPECT_EQ(request.smt, 1);
  EXPECT_TRUE(request.explain);
  EXPECT_EQ(request.memory, "off");
  EXPECT_EQ(pin("auto,mem=interleave").memory, "interleave");
  EXPECT_EQ(pin("auto,mem=local").memory, "local");
  EXPECT_EQ(pin("auto").memory, "local");
}

TEST(Options, InvalidItemsOfPinAreRefused) {
  for (const char* value : {"",
                            ",",
                            "auto,",
                            ",auto",
                            "auto,,smt=1",
                            "workers=2",
                            "auto,workers=",
                            "auto,workers=-1",
                            "auto,workers=2x",
                            "auto,workers=99999999999999999999",
                            "auto,smt=0",
                            "auto,smt=1,smt=2",
                            "auto,workers=1,workers=1",
                            "auto,mem=",
                            "auto,mem=far",
                            "auto,Explain",
                            "AUTO",
                            "auto ",
                            "auto,core",
                            "auto,workers",
                            "auto,workers=+1",
                            "auto,smt= 1"}) {
    EXPECT_NE(error_of(Option::pin, value), "") << value;
  }
}

}  // namespace
}  // namespace lockstep
