#include "common/units.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "common/json_bytes.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

TEST(Units, BytesHaveThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(25U << 20U), "25.0 MiB");
}

TEST(Units, SecondsUseASuitableUnit) {
  EXPECT_EQ(format_seconds(0.000'85), "850 us");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(4.56), "4.56 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(7500), "2 h 05 min");
}

TEST(Units, CountsAreDecimal) {
  EXPECT_EQ(format_count(812), "812");
  EXPECT_EQ(format_count(12'345), "12.3 k");
  EXPECT_EQ(format_count(4'560'000), "4.56 M");
}

TEST(Units, SizesAreReadInBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("64K"), 65536U);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1'610'612'736U);
  EXPECT_EQ(parse_bytes("200MB"), 200U << 20U);
}

TEST(Units, WrongSizesAreRefused) {
  for (const char* text : {"", "x", "-1", "1X", "1KK", "nan", "9999999P", "0.1"}) {
    EXPECT_THROW(parse_bytes(text), UsageError) << text;
  }
}

TEST(Units, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("with space, \xc3\xbc"), "with space, \xc3\xbc");
  EXPECT_EQ(printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\u009b");  // acts as an escape on some terminals
  EXPECT_EQ(printable("abc\xc3\xbc", 4), "abc...");
  EXPECT_EQ(printable("\x80\x80\x80", 2), "...");
}

TEST(Text, AWordForAShellHasQuotesIfItNeedsThem) {
  EXPECT_EQ(shell_word("/data/a-b_1.tar"), "/data/a-b_1.tar");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("my $HOME"), "'my $HOME'");
  EXPECT_EQ(shell_word("it's\\"), "'it'\\''s\\'");
  EXPECT_EQ(shell_word("a\n'\\\xff 7"), "$'a\\012\\'\\\\\\377 7'");
}

TEST(Text, HexadecimalDigitsGiveTheBytesBack) {
  const std::string bytes("a\0\xff\n", 4);
  EXPECT_EQ(to_hex(std::as_bytes(std::span(bytes))), "6100ff0a");
  EXPECT_EQ(from_hex("6100ff0a"), bytes);
  for (const char* damaged : {"6", "6g", "FF"}) EXPECT_THROW(from_hex(damaged), Error) << damaged;
}

TEST(Text, NumbersHaveDigitsOnlyAndFit) {
  for (const char* number : {"0", "007", "999999999999999999"}) EXPECT_TRUE(is_number(number)) << number;
  for (const char* other : {"", "-1", "1.5", "x", "1 ", "9999999999999999999"})
    EXPECT_FALSE(is_number(other)) << other;
}

TEST(JsonBytes, KeepNamesOfAnyBytes) {
  for (const std::string name : {"plain", "\xc3\xbc", "bad\xff\x80"}) {
    nlohmann::json object;
    put_bytes(object, "name", name);
    EXPECT_EQ(bytes_in(nlohmann::json::parse(object.dump()), "name"), name);
    EXPECT_EQ(object.contains("name"), name.front() != 'b');
    const nlohmann::json whole{{"names", {name, "x"}}, {"inner", {{"name", name}}}, {"number", 1}};
    EXPECT_EQ(parse_any_bytes(dump_any_bytes(whole)), whole);
  }
}

}  // namespace
}  // namespace lockstep
