// The folder of checkpoints: whose it is, and whether it can be used. Other jobs: checkpoint_job_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "common/file_system.h"
#include "common/files.h"
#include "tests/integration/train/checkpoint_world.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A training that saved step 900.
void train_to_900(const fs::path& folder, std::int64_t& value) {
  Checkpointer checkpointer(world(), folder);
  checkpointer.add("value", value);
  checkpointer.save(900);
}

TEST(CheckpointFolder, CheckpointsOfAnotherTrainingAreNotMixed) {
  const SharedFolder folder;
  std::int64_t value = 5;
  train_to_900(folder / "run", value);
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("value", value);
  EXPECT_THAT(
      error_of([&] { checkpointer.save(1); }),
      AllOf(HasSubstr("has checkpoints of another training, of step 900"), HasSubstr("load_latest()")));
  EXPECT_THAT(error_of([&] { Checkpointer(world(), folder / "other/.." / "run"); }),
              AllOf(HasSubstr("another Checkpointer of this program uses"), HasSubstr("run")));
  EXPECT_EQ(checkpointer.load_latest(), 900);
  EXPECT_THAT(error_of([&] { checkpointer.save(899); }),
              HasSubstr("must be called with a step after the last one, 900"));
}

TEST(CheckpointFolder, AFolderWhoseCheckpointDoesNotFitIsNotWrittenInto) {
  const SharedFolder folder;
  std::int64_t value = 5;
  train_to_900(folder / "run", value);
  Checkpointer unfit(world(), folder / "run");
  unfit.add("other", value);
  EXPECT_THAT(error_of([&] { unfit.load_latest(); }), HasSubstr("cannot resume from"));
  EXPECT_THAT(error_of([&] { unfit.save(1); }), HasSubstr("has checkpoints of another training"));
}

TEST(CheckpointFolder, ARelativeFolderStaysWhereItIs) {
  const SharedFolder folder;
  const auto before = fs::current_path();
  std::int64_t value = 5;
  fs::create_directories(folder.path());
  any_rank(false);
  fs::current_path(folder.path());
  {
    Checkpointer checkpointer(world(), "run/");
    checkpointer.add("value", value);
    fs::current_path(before);
    checkpointer.save(1);
  }
  EXPECT_FALSE(any_rank(!fs::exists(folder / "run/step-000001")));
}

TEST(CheckpointFolder, TooLittleRoomIsSaidBeforeTheFirstCheckpoint) {
  struct AlmostFull : FileSystem {
    ssize_t call(const FileCall& call) override {
      const ssize_t result = FileSystem::call(call);
      if (call.kind == Kind::statvfs) call.space->f_bavail = free_blocks;
      return result;
    }
    unsigned long free_blocks = 0;
  } system;
  for (const unsigned long blocks : {0UL, 1UL << 30U}) {
    const SharedFolder folder;
    system.free_blocks = blocks;
    std::int64_t value = 5;
    ::testing::internal::CaptureStderr();
    {
      Checkpointer checkpointer(world(), folder / "run", {.file_system = &system});
      checkpointer.add("value", value);
      checkpointer.save(1);
      checkpointer.save(2);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    const bool warns = said.find("but 3 more checkpoints of ") != std::string::npos;
    EXPECT_EQ(warns, blocks == 0 && world().rank() == 0) << said;
  }
}

TEST(CheckpointFolder, AReadOnlyOneLeavesTheFolderAlone) {
  const SharedFolder folder;
  std::int64_t value = 5;
  Checkpointer none(world(), folder / "none", {.read_only = true});
  none.add("value", value);
  EXPECT_EQ(none.load_latest(), std::nullopt);
  EXPECT_FALSE(any_rank(fs::exists(folder / "none")));
  EXPECT_THAT(error_of([&] { none.save(1); }), HasSubstr("read_only"));
}

TEST(CheckpointFolder, AFolderThatCannotBeMadeIsRefusedAtOnce) {
  const SharedFolder folder;
  if (world().rank() == 0) write_file_atomically(folder.path().string(), "a file is in the way");
  any_rank(false);
  EXPECT_THAT(error_of([&] { Checkpointer(world(), folder / "run"); }), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace lockstep::testing
