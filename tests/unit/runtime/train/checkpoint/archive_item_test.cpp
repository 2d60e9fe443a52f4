// Objects and values in archives, and those of checkpoints that an earlier version wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <clocale>
#include <limits>
#include <map>
#include <string>

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

TEST(EarlierCheckpoints, NumbersDoNotDependOnTheLocale) {
  const CommaLocale comma;
  ASSERT_EQ(std::strtod("0.5", nullptr), 0) << "the locale has a decimal point";
  for (const double number :
       {0.123, -1e-300, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    double value = 7;
    Section saved;
    saved.values["value"] = fmt::format("{}", number);
    value_item(value)->load({saved});
    EXPECT_EQ(value, number);
    const Section now = value_item(value)->save();
    value = 7;
    value_item(value)->load({now});
    EXPECT_EQ(value, number);
  }
}

TEST(EarlierCheckpoints, NumbersThatCannotBeReadAreRefused) {
  double value = 7;
  Section section;
  section.values["value"] = "0,5";
  EXPECT_THROW(value_item(value)->load({section}), Error);
  EXPECT_EQ(value, 7);
}

// Keeps everything that it reads.
struct Archive {
  void load(torch::serialize::InputArchive& archive) {
    for (const auto& key : archive.keys()) archive.read(key, values[key]);
  }
  std::map<std::string, c10::IValue> values;
};

std::map<std::string, c10::IValue> loaded(const std::string& type, const Section& section) {
  Archive object;
  const auto item = archive_item([](auto& /*archive*/) {}, [&](auto& archive) { object.load(archive); });
  EXPECT_TRUE(item->reads(type)) << type;
  item->check({section});
  item->load({section});
  return object.values;
}

TEST(EarlierCheckpoints, ObjectsAreReadAsArchives) {
  const Section scaler{.tensors = {}, .values = {{"scale", "65536"}, {"good_steps", 12}}};
  auto values = loaded("grad_scaler", scaler);
  EXPECT_EQ(values.at("scale").toDouble(), 65'536);
  EXPECT_EQ(values.at("good_steps").toInt(), 12);
  EXPECT_EQ(loaded("learning_rate", {.tensors = {}, .values = {{"step", 3}}}).at("step").toInt(), 3);
  const Section plateau{.tensors = {}, .values = {{"best", "-inf"}, {"observations", 1}, {"begun", true}}};
  values = loaded("reduce_on_plateau", plateau);
  EXPECT_EQ(values.at("best").toDouble(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(values.at("begun").toBool());
  const Section loader{.tensors = {{"value", torch::tensor({'{', '}'}, torch::kUInt8)}}};
  EXPECT_EQ(loaded("text", loader).at("state").toStringRef(), "{}");
  std::string text;
  value_item(text)->load({loader});
  EXPECT_EQ(text, "{}");
  std::int64_t number = 0;
  value_item(number)->load({Section{.tensors = {}, .values = {{"value", 5}}}});
  EXPECT_EQ(number, 5);
}

TEST(EarlierCheckpoints, OtherTypesAreNotReadAsObjects) {
  const auto item = archive_item([](auto& /*archive*/) {}, [](auto& /*archive*/) {});
  EXPECT_TRUE(item->reads("object"));
  EXPECT_FALSE(item->reads("module"));
  double value = 0;
  EXPECT_FALSE(value_item(value)->reads("text"));
}

}  // namespace
}  // namespace lockstep::checkpoint
