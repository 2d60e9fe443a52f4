#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "plugin/spank/pinning/pinning.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::spank {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Gpus, NumbersCountWithinTheStepWhereDevicesAreConfined) {
  EXPECT_THAT(gpus_of_task("0", "2,3"), ElementsAre("2"));
  EXPECT_THAT(gpus_of_task("1,0", "2,3"), ElementsAre("3", "2"));
}

TEST(Gpus, NumbersAreTheNodesWhereDevicesAreNotConfined) {
  EXPECT_THAT(gpus_of_task("3", "2,3"), ElementsAre("3"));
}

TEST(Gpus, ValuesThatAreNotNumbersOfTheStepsGpusGiveNone) {
  EXPECT_THAT(gpus_of_task("", "2,3"), IsEmpty());
  EXPECT_THAT(gpus_of_task("0", ""), IsEmpty());
  EXPECT_THAT(gpus_of_task("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "0"), IsEmpty());
  EXPECT_THAT(gpus_of_task("5", "2,3"), IsEmpty());
  EXPECT_THAT(gpus_of_task("0,99999999999999999999", "0"), IsEmpty());
  EXPECT_THAT(gpus_of_task("-1", "0"), IsEmpty());
}

TEST(Gpus, AreListedForThePlanIfAllTasksSeeTheSameOrEquallyMany) {
  EXPECT_EQ(list_for_plan({{"0", "1"}, {"0", "1"}}), "0,1") << "once";
  EXPECT_EQ(list_for_plan({{"2"}, {"0"}}), "2,0") << "task by task";
  EXPECT_EQ(list_for_plan({{"0", "1"}, {"2", "3"}}), "0,1,2,3");
  EXPECT_EQ(list_for_plan({{"0", "1"}, {"2"}}), "") << "equal blocks cannot express it";
  EXPECT_EQ(list_for_plan({{"0", "1"}, {"1", "2"}}), "");
  EXPECT_EQ(list_for_plan({{}, {"1"}}), "");
  EXPECT_EQ(list_for_plan({{"1"}, {}}), "");
  EXPECT_EQ(list_for_plan({}), "");
}

TEST(Gpus, AnAddressIsFoundByTheDevicesMinorNumber) {
  const lockstep::testing::TemporaryFolder temporary;
  const fs::path& listed = temporary.path();
  for (const auto& [address, minor] : {std::pair{"0000:07:00.0", "1"}, std::pair{"0000:46:00.0", "0"}}) {
    fs::create_directory(listed / address);
    std::ofstream(listed / address / "information")
        << "Model: \t\t Some GPU\nDevice Minor: \t " << minor << "\n";
  }
  EXPECT_EQ(pci_address("0", listed), "0000:46:00.0");
  EXPECT_EQ(pci_address("1", listed), "0000:07:00.0");
  EXPECT_EQ(pci_address("2", listed), "2");
  EXPECT_EQ(pci_address("0", listed / "missing"), "0");
}

}  // namespace
}  // namespace lockstep::spank
