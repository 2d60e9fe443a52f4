// The main of tests that run on several ranks. Every rank runs every test. Rank 0 prints as usual; the other
// ranks print only failures, with their rank. After each test the ranks exchange results, so that a test that
// fails on one rank fails on all of them, and no rank starts the next test early.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/integration/mpi_world.h"

namespace lockstep::testing {

// One for the whole program, also if several files like this one are linked into it (tests/device).
inline World* the_world = nullptr;

namespace {

class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", world().rank(),
                 result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                 result.message());
  }
};

class MeetAfterEachTest : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (any_rank(test.result()->Failed()) && !test.result()->Failed()) {
      ADD_FAILURE() << test.test_suite_name() << "." << test.name() << " failed on another rank";
    }
  }
};

}  // namespace

World& world() {
  return *the_world;
}

bool any_rank(bool mine) {
  std::int32_t any = mine ? 1 : 0;
  world()
      .communicator()
      .all_reduce({&any, 1, comm::DataType::i32}, "a test's result", {.op = comm::ReduceOp::max})
      ->wait();
  return any != 0;
}

}  // namespace lockstep::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  lockstep::World world(argc, argv);
  lockstep::testing::the_world = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new lockstep::testing::FailuresOnly);
  }
  listeners.Append(new lockstep::testing::MeetAfterEachTest);
  const int failed = RUN_ALL_TESTS();
  return lockstep::testing::any_rank(failed != 0) ? 1 : 0;
}
