#include "runtime/comm/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "common/error.h"
#include "runtime/comm/half.h"

namespace lockstep::comm {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(Half, Bf16RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(to_bf16(1.0F + 0x1p-8F).bits, 0x3F80) << "a tie goes to the even neighbour below";
  EXPECT_EQ(to_bf16(1.0F + 0x3p-8F).bits, 0x3F82) << "a tie goes to the even neighbour above";
  EXPECT_EQ(to_bf16(1.0F + 0x1.1p-8F).bits, 0x3F81);
  EXPECT_EQ(to_bf16(-2.0F).bits, 0xC000);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80) << "infinity";
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Half, Bf16AndF16SurviveARoundTripBitByBit) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float from_bf16 = to_float(Bf16{half});
    if (!std::isnan(from_bf16)) {
      ASSERT_EQ(to_bf16(from_bf16).bits, half);
    }
    const float from_f16 = to_float(F16{half});
    if (!std::isnan(from_f16)) {
      ASSERT_EQ(to_f16(from_f16).bits, half);
    }
  }
}

#if defined(__x86_64__)
// World flushes denormal floats, and small gradients in half precision must stay.
TEST(Half, SubnormalF16SurvivesWhereDenormalFloatsAreFlushed) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);  // flush results, and take inputs for zero
  int lost = 0;
  for (std::uint16_t half = 0; half < 0x400; ++half) {
    const volatile std::uint16_t not_folded = half;
    if (to_f16(to_float(F16{not_folded})).bits != half) ++lost;
  }
  _mm_setcsr(before);
  EXPECT_EQ(lost, 0);
}
#endif

// The reference is the compiler's conversion.
TEST(Half, F16ConvertsLikeTheHardware) {
  const std::array<float, 14> values{0.0F,     -0.0F,     1.0F,         65504.0F,      65519.9F,
                                     65520.0F, 1e6F,      0x1p-24F,     0x1p-25F,      0x1.8p-25F,
                                     6.1e-5F,  -3.14159F, 0x1.ffcp-15F, 1.00048828125F};
  for (const float value : values) {
    const auto expected = std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
    EXPECT_EQ(to_f16(value).bits, expected) << value;
  }
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(to_float(F16{0x7C00}), std::numeric_limits<float>::infinity());
}

TEST(Reduce, SumsInTheOrderOfTheInputsAndScalesTheResult) {
  const std::size_t count = 5000;  // more than a block
  const std::vector<float> a(count, 1e8F);
  const std::vector<float> b(count, -1e8F);
  const std::vector<float> c(count, 3.0F);
  std::vector<float> into(count);
  reduce(std::array<const void*, 3>{a.data(), b.data(), c.data()}, into.data(), count, DataType::f32,
         {.op = ReduceOp::sum, .scale = 0.5});
  EXPECT_THAT(into, Each(1.5F));
  reduce(std::array<const void*, 3>{a.data(), c.data(), b.data()}, into.data(), count, DataType::f32,
         {.op = ReduceOp::sum});
  EXPECT_THAT(into, Each(0.0F)) << "3 is lost beside 1e8: the order counts";
}

TEST(Reduce, MayWriteIntoOneOfItsInputs) {
  std::vector<double> a{1, 2, 3};
  const std::vector<double> b{10, 20, 30};
  reduce(std::array<const void*, 2>{b.data(), a.data()}, a.data(), 3, DataType::f64, {.op = ReduceOp::sum});
  EXPECT_THAT(a, ElementsAre(11, 22, 33));
}

TEST(Reduce, FindsMaximumAndMinimumOfIntegers) {
  const std::array<std::uint8_t, 3> a{1, 200, 30};
  const std::array<std::uint8_t, 3> b{2, 100, 30};
  std::array<std::uint8_t, 3> into{};
  reduce(std::array<const void*, 2>{a.data(), b.data()}, into.data(), 3, DataType::u8, {.op = ReduceOp::max});
  EXPECT_THAT(into, ElementsAre(2, 200, 30));
  reduce(std::array<const void*, 2>{a.data(), b.data()}, into.data(), 3, DataType::u8, {.op = ReduceOp::min});
  EXPECT_THAT(into, ElementsAre(1, 100, 30));
}

TEST(Reduce, ReturnsANanIfAnyInputIsANan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
    std::array<float, 2> a{1.0F, nan};
    std::array<float, 2> b{nan, 1.0F};
    reduce(std::array<const void*, 2>{a.data(), b.data()}, a.data(), 2, DataType::f32, {.op = op});
    EXPECT_TRUE(std::isnan(a[0]) && std::isnan(a[1])) << static_cast<int>(op);
  }
}

TEST(Reduce, GivesAllRanksTheSameResult) {
  for (const std::size_t ranks : {1, 2, 3, 4, 5}) {
    std::vector<std::vector<float>> values(ranks, std::vector<float>(3001));
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < values[rank].size(); ++i)
        values[rank][i] = std::sin(static_cast<float>(rank * 7 + i));
      inputs.push_back(values[rank].data());
      outputs.push_back(values[rank].data());
    }
    std::vector<float> expected(3001);
    reduce(inputs, expected.data(), expected.size(), DataType::f32, {.op = ReduceOp::sum, .scale = 0.3});
    reduce_to_all(inputs, outputs, expected.size(), DataType::f32, {.op = ReduceOp::sum, .scale = 0.3});
    EXPECT_THAT(values, Each(expected)) << ranks << " ranks";
  }
}

TEST(Reduce, SumsOrFindsTheMaximumAsTheLowestBitSays) {
  const std::vector<std::int64_t> first{10, -4, 7, 3};
  const std::vector<std::int64_t> second{2, -6, 5, 9};
  const void* const inputs[] = {first.data(), second.data()};
  std::vector<std::int64_t> result(4);
  reduce(inputs, result.data(), result.size(), DataType::i64, {.op = ReduceOp::sum_or_max});
  EXPECT_THAT(result, ::testing::ElementsAre(12, -10, 7, 9));
  EXPECT_THROW(reduce(inputs, result.data(), 1, DataType::i32, {.op = ReduceOp::sum_or_max}), UsageError);
}

TEST(Reduce, RejectsAScaleOnIntegers) {
  std::int32_t value = 1;
  EXPECT_THROW(reduce(std::array<const void*, 1>{&value}, &value, 1, DataType::i32,
                      {.op = ReduceOp::sum, .scale = 0.5}),
               UsageError);
}

}  // namespace
}  // namespace lockstep::comm
