#include "runtime/comm/single/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "common/error.h"

namespace lockstep::comm {
namespace {

TEST(SingleCommunicator, IsDoneWhenTheCallReturns) {
  const auto communicator = make_single_communicator("here");
  double value = 3;
  double scale = 0;
  const auto work =
      communicator->all_reduce({&value, 1, DataType::f64}, "a value", {.then = [&] { scale = 0.5; }});
  EXPECT_TRUE(work->done());
  EXPECT_EQ(value, 3);
  communicator->all_reduce({&value, 1, DataType::f64}, "a value", {.scale = &scale})->wait();
  EXPECT_EQ(value, 1.5);
  double gathered = 0;
  communicator->all_gather({&value, 1, DataType::f64}, &gathered, "a value")->wait();
  EXPECT_EQ(gathered, 1.5);
}

TEST(SingleCommunicator, GivesZeroedAlignedMemory) {
  const auto communicator = make_single_communicator("here");
  for (const std::size_t bytes : {0, 1, 1000}) {
    const auto memory = communicator->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 64, 0U);
    for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(static_cast<const char*>(memory.get())[i], 0);
  }
}

TEST(SingleCommunicator, RejectsARootThatDoesNotExist) {
  const auto communicator = make_single_communicator("n1");
  int value = 1;
  const auto work = communicator->broadcast({&value, 1, DataType::i32}, 1, "weights");
  EXPECT_THAT([&] { work->wait(); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("there is no rank 1")));
}

}  // namespace
}  // namespace lockstep::comm
