#include "runtime/comm/reduction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "common/error.h"
#include "runtime/comm/half.h"

namespace lockstep::comm {
namespace {

// Elements that are worked on at a time: the sums of a block stay in the first-level cache.
constexpr std::size_t kBlock = 2048;

struct Sum {
  template <typename T>
  T operator()(T left, T right) const {
    return static_cast<T>(left + right);
  }
};
struct Max {
  template <typename T>
  T operator()(T left, T right) const {
    return right > left ? right : left;
  }
};
struct Min {
  template <typename T>
  T operator()(T left, T right) const {
    return right < left ? right : left;
  }
};

struct BitOr {
  template <typename T>
  T operator()(T left, T right) const {
    return static_cast<T>(left | right);
  }
};

// Stored is what lies in memory, Wide what is computed with.
template <typename Stored>
struct WideOf {
  using type = Stored;
  static type widen(Stored value) { return value; }
  static Stored narrow(type value) { return value; }
};
template <>
struct WideOf<Bf16> {
  using type = float;
  static float widen(Bf16 value) { return to_float(value); }
  static Bf16 narrow(float value) { return to_bf16(value); }
};
template <>
struct WideOf<F16> {
  using type = float;
  static float widen(F16 value) { return to_float(value); }
  static F16 narrow(float value) { return to_f16(value); }
};

template <typename Stored, typename Op>
void reduce_as(std::span<const void* const> inputs, Stored* into, std::size_t count, Op op,
               std::optional<double> scale) {
  using Wide = typename WideOf<Stored>::type;
  std::array<Wide, kBlock> sums;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    const auto* first = static_cast<const Stored*>(inputs[0]) + begin;
    for (std::size_t i = 0; i < n; ++i) sums[i] = WideOf<Stored>::widen(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const auto* next = static_cast<const Stored*>(input) + begin;
      for (std::size_t i = 0; i < n; ++i) sums[i] = op(sums[i], WideOf<Stored>::widen(next[i]));
    }
    if constexpr (std::is_floating_point_v<Wide>) {
      if (scale) {
        const Wide factor = static_cast<Wide>(*scale);
        for (std::size_t i = 0; i < n; ++i) sums[i] *= factor;
      }
    }
    for (std::size_t i = 0; i < n; ++i) into[begin + i] = WideOf<Stored>::narrow(sums[i]);
  }
}

template <typename Stored>
void reduce_typed(std::span<const void* const> inputs, void* into, std::size_t count, ReduceOp op,
                  std::optional<double> scale) {
  auto* typed = static_cast<Stored*>(into);
  switch (op) {
    case ReduceOp::sum:
      return reduce_as(inputs, typed, count, Sum{}, scale);
    case ReduceOp::max:
      return reduce_as(inputs, typed, count, Max{}, scale);
    case ReduceOp::min:
      return reduce_as(inputs, typed, count, Min{}, scale);
    case ReduceOp::bit_or:
      if constexpr (std::is_integral_v<Stored>) return reduce_as(inputs, typed, count, BitOr{}, scale);
      fail_usage("bit_or is for integers");
    case ReduceOp::average:
      fail_usage("an average is a sum with a scale by now");
  }
}

bool is_integer(DataType type) {
  return type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
}

}  // namespace

Finish finish_of(const ReduceOptions& options, int ranks) {
  Finish finish{.op = options.op, .scale = std::nullopt};
  if (options.scale != nullptr) finish.scale = *options.scale;
  if (options.op == ReduceOp::average) {
    finish = {.op = ReduceOp::sum, .scale = finish.scale.value_or(1.0) / ranks};
  }
  return finish;
}

void reduce(std::span<const void* const> inputs, void* into, std::size_t count, DataType type, ReduceOp op,
            std::optional<double> scale) {
  if (scale && is_integer(type)) {
    fail_usage("a scale or an average is for floating-point elements, not {}", name_of(type));
  }
  switch (type) {
    case DataType::f32:
      return reduce_typed<float>(inputs, into, count, op, scale);
    case DataType::f64:
      return reduce_typed<double>(inputs, into, count, op, scale);
    case DataType::bf16:
      return reduce_typed<Bf16>(inputs, into, count, op, scale);
    case DataType::f16:
      return reduce_typed<F16>(inputs, into, count, op, scale);
    case DataType::i32:
      return reduce_typed<std::int32_t>(inputs, into, count, op, scale);
    case DataType::i64:
      return reduce_typed<std::int64_t>(inputs, into, count, op, scale);
    case DataType::u8:
      return reduce_typed<std::uint8_t>(inputs, into, count, op, scale);
  }
}

}  // namespace lockstep::comm
