#include "runtime/comm/reduction.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "common/error.h"
#include "common/vectorised.h"
#include "runtime/comm/half.h"

namespace lockstep::comm {
namespace {

// Elements per block; the sums of a block fit into the first-level cache.
constexpr std::size_t kBlock = 2048;

struct Sum {
  template <typename T>
  T operator()(T left, T right) const {
    return static_cast<T>(left + right);
  }
};
// max and min return a NaN if any input is a NaN, so that a check for finite numbers finds it.
template <typename T>
bool is_nan(T value) {
  return value != value;
}

struct Max {
  template <typename T>
  T operator()(T left, T right) const {
    return right > left || is_nan(right) ? right : left;
  }
};
struct Min {
  template <typename T>
  T operator()(T left, T right) const {
    return right < left || is_nan(right) ? right : left;
  }
};

struct BitOr {
  template <typename T>
  T operator()(T left, T right) const {
    return static_cast<T>(left | right);
  }
};

struct SumOrMax {
  std::int64_t operator()(std::int64_t left, std::int64_t right) const {
    return (left & 1) == 0 ? left + right : std::max(left, right);
  }
};

// Stored is the type in memory, Wide the type of the computation.
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

// `sums` = inputs[0] op inputs[1] op …, from `begin` on.
template <typename Stored, typename Wide, typename Op>
void sum_block(std::span<const void* const> inputs, std::size_t begin, std::size_t n, Wide* sums, Op op) {
  const auto* first = static_cast<const Stored*>(inputs[0]) + begin;
  for (std::size_t i = 0; i < n; ++i) sums[i] = WideOf<Stored>::widen(first[i]);
  for (const void* input : inputs.subspan(1)) {
    const auto* next = static_cast<const Stored*>(input) + begin;
    for (std::size_t i = 0; i < n; ++i) sums[i] = op(sums[i], WideOf<Stored>::widen(next[i]));
  }
}

// For a few ranks. One rank or all of them get the result, and everything stays in registers. Results may overwrite inputs at
// the same index only, as ivdep requires.
template <int kRanks, int kResults, typename Stored, typename Op>
void reduce_few(std::span<const void* const> inputs, std::span<void* const> into, std::size_t count, Op op,
                std::optional<double> scale) {
  using Wide = typename WideOf<Stored>::type;
  std::array<const Stored*, kRanks> from;
  std::array<Stored*, kResults> to;
  for (std::size_t rank = 0; rank < kRanks; ++rank) from[rank] = static_cast<const Stored*>(inputs[rank]);
  for (std::size_t rank = 0; rank < kResults; ++rank) to[rank] = static_cast<Stored*>(into[rank]);
  const auto run = [&](auto result_of) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      Wide sum = WideOf<Stored>::widen(from[0][i]);
      for (std::size_t rank = 1; rank < kRanks; ++rank) sum = op(sum, WideOf<Stored>::widen(from[rank][i]));
      const Stored result = WideOf<Stored>::narrow(result_of(sum));
      for (Stored* memory : to) memory[i] = result;
    }
  };
  if constexpr (std::is_floating_point_v<Wide>) {
    const Wide factor = static_cast<Wide>(scale.value_or(1.0));
    if (scale) return run([factor](Wide sum) { return sum * factor; });
  }
  run([](Wide sum) { return sum; });
}

template <typename Stored, typename Op>
void reduce_as(std::span<const void* const> inputs, std::span<void* const> into, std::size_t count, Op op,
               std::optional<double> scale) {
  using Wide = typename WideOf<Stored>::type;
  alignas(64) std::array<Wide, kBlock> sums;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    sum_block<Stored>(inputs, begin, n, sums.data(), op);
    if constexpr (std::is_floating_point_v<Wide>) {
      if (scale) {
        const Wide factor = static_cast<Wide>(*scale);
        for (std::size_t i = 0; i < n; ++i) sums[i] *= factor;
      }
    }
    for (void* output : into) {
      auto* results = static_cast<Stored*>(output) + begin;
      for (std::size_t i = 0; i < n; ++i) results[i] = WideOf<Stored>::narrow(sums[i]);
    }
  }
}

// Calls `with` with the functor for `op`.
template <typename Stored, typename With>
void dispatch(ReduceOp op, With with) {
  switch (op) {
    case ReduceOp::sum:
      return with(Sum{});
    case ReduceOp::max:
      return with(Max{});
    case ReduceOp::min:
      return with(Min{});
    case ReduceOp::bit_or:
      if constexpr (std::is_integral_v<Stored>) return with(BitOr{});
      fail_usage("bit_or is for integers only");
    case ReduceOp::sum_or_max:
      if constexpr (std::is_same_v<Stored, std::int64_t>) return with(SumOrMax{});
      fail_usage("sum_or_max is for i64 only");
    case ReduceOp::average:
      fail_usage("scaled_op_of() must replace average by a sum with a scale");
  }
}

template <typename Stored>
[[gnu::always_inline]] inline void reduce_typed(std::span<const void* const> inputs,
                                                std::span<void* const> into, std::size_t count,
                                                const ScaledOp& scaled) {
  dispatch<Stored>(scaled.op, [&](auto op) {
    const auto few = [&]<int kRanks>() {
      if (into.size() == 1) return reduce_few<kRanks, 1, Stored>(inputs, into, count, op, scaled.scale);
      if (into.size() == kRanks)
        return reduce_few<kRanks, kRanks, Stored>(inputs, into, count, op, scaled.scale);
      reduce_as<Stored>(inputs, into, count, op, scaled.scale);
    };
    switch (inputs.size()) {
      case 2:
        return few.template operator()<2>();
      case 3:
        return few.template operator()<3>();
      case 4:
        return few.template operator()<4>();
      default:
        return reduce_as<Stored>(inputs, into, count, op, scaled.scale);
    }
  });
}

using Inputs = std::span<const void* const>;
using Outputs = std::span<void* const>;

LOCKSTEP_VECTORISED void reduce_f32(Inputs inputs, Outputs into, std::size_t count, const ScaledOp& scaled) {
  reduce_typed<float>(inputs, into, count, scaled);
}
LOCKSTEP_VECTORISED void reduce_f64(Inputs inputs, Outputs into, std::size_t count, const ScaledOp& scaled) {
  reduce_typed<double>(inputs, into, count, scaled);
}
LOCKSTEP_VECTORISED void reduce_bf16(Inputs inputs, Outputs into, std::size_t count, const ScaledOp& scaled) {
  reduce_typed<Bf16>(inputs, into, count, scaled);
}
LOCKSTEP_VECTORISED void reduce_f16(Inputs inputs, Outputs into, std::size_t count, const ScaledOp& scaled) {
  reduce_typed<F16>(inputs, into, count, scaled);
}

template <typename Half>
void reduce_wide_as(Inputs inputs, float* into, std::size_t count, ReduceOp op) {
  dispatch<Half>(op, [&](auto functor) { sum_block<Half>(inputs, 0, count, into, functor); });
}

template <typename Half>
void narrow_as(const float* from, void* into, std::size_t count) {
  auto* results = static_cast<Half*>(into);
  for (std::size_t i = 0; i < count; ++i) results[i] = WideOf<Half>::narrow(from[i]);
}

bool is_integer(DataType type) {
  return type == DataType::i32 || type == DataType::i64 || type == DataType::u8;
}

}  // namespace

ScaledOp scaled_op_of(const ReduceOptions& options, int ranks) {
  ScaledOp scaled{.op = options.op, .scale = std::nullopt};
  if (options.scale != nullptr) scaled.scale = *options.scale;
  if (options.op == ReduceOp::average) {
    scaled = {.op = ReduceOp::sum, .scale = scaled.scale.value_or(1.0) / ranks};
  }
  return scaled;
}

void reduce_to_all(std::span<const void* const> inputs, std::span<void* const> into, std::size_t count,
                   DataType type, ScaledOp scaled) {
  if (scaled.scale && is_integer(type)) {
    fail_usage("a scale or an average is for floating-point elements only, not for {}", name_of(type));
  }
  switch (type) {
    case DataType::f32:
      return reduce_f32(inputs, into, count, scaled);
    case DataType::f64:
      return reduce_f64(inputs, into, count, scaled);
    case DataType::bf16:
      return reduce_bf16(inputs, into, count, scaled);
    case DataType::f16:
      return reduce_f16(inputs, into, count, scaled);
    case DataType::i32:
      return reduce_typed<std::int32_t>(inputs, into, count, scaled);
    case DataType::i64:
      return reduce_typed<std::int64_t>(inputs, into, count, scaled);
    case DataType::u8:
      return reduce_typed<std::uint8_t>(inputs, into, count, scaled);
  }
}

bool is_half(DataType type) {
  return type == DataType::bf16 || type == DataType::f16;
}

void reduce_wide(std::span<const void* const> inputs, float* into, std::size_t count, DataType type,
                 ReduceOp op) {
  if (type == DataType::bf16) return reduce_wide_as<Bf16>(inputs, into, count, op);
  if (type == DataType::f16) return reduce_wide_as<F16>(inputs, into, count, op);
  fail_usage("{} is not a half type", name_of(type));
}

void narrow(const float* from, void* into, std::size_t count, DataType type) {
  if (type == DataType::bf16) return narrow_as<Bf16>(from, into, count);
  if (type == DataType::f16) return narrow_as<F16>(from, into, count);
  fail_usage("{} is not a half type", name_of(type));
}

}  // namespace lockstep::comm
