// Numbers in a checkpoint do not depend on the program's locale.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <clocale>
#include <limits>

#include "common/error.h"
#include "common/files.h"
#include "common/process.h"
#include "runtime/train/checkpoint/items.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

// The machine may have no such locale, so the test makes one.
class CommaLocale {
 public:
  CommaLocale() {
    write_file_atomically(
        folder_ / "source",
        "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n");
    (void)run_process({"localedef", "-c", "-i", (folder_ / "source").string(), (folder_ / "comma").string()});
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    if (std::setlocale(LC_NUMERIC, "comma") == nullptr) throw std::runtime_error("localedef made no locale");
  }
  ~CommaLocale() {
    std::setlocale(LC_NUMERIC, "C");
    ::unsetenv("LOCPATH");
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

 private:
  testing::TemporaryFolder folder_;
};

TEST(NumbersInCheckpoints, DoNotDependOnTheLocale) {
  const CommaLocale comma;
  ASSERT_EQ(std::strtod("0.5", nullptr), 0) << "the locale has a decimal point";
  for (const double number :
       {0.123, -1e-300, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    double value = number;
    const auto item = value_item(value);
    const Section saved = item->save();
    value = 7;
    item->load({saved});
    EXPECT_EQ(value, number);
  }
}

TEST(NumbersInCheckpoints, ThatAreNoNumbersAreRefused) {
  double value = 7;
  Section section;
  section.values["value"] = "0,5";
  EXPECT_THROW(value_item(value)->load({section}), Error);
  EXPECT_EQ(value, 7);
}

}  // namespace
}  // namespace lockstep::checkpoint
