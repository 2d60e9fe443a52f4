#include "common/leaf/source_name.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(SourceName, IsTheLastNameOfThePath) {
  EXPECT_EQ(entry_name("/x/pack"), "pack");
  EXPECT_EQ(entry_name("/x/pack/"), "pack");
  EXPECT_EQ(entry_name("/x/pack/a.tar"), "a.tar");
  EXPECT_EQ(entry_name("/"), "");
}

TEST(SourceName, OfAPatternIsTheNameOfItsFolder) {
  EXPECT_EQ(entry_name("/x/pack/a-{00..31}.tar"), "pack");
  EXPECT_EQ(entry_name("/x/pack/*"), "pack");
}

}  // namespace
}  // namespace lockstep
