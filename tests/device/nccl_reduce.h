// The sums of the simulated NCCL: rank after rank, halves rounded at each step.
//
// Threads: safe from any.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/comm/half.h"

namespace lockstep::simulated {

/// What ncclRedOp_t stands for. An average multiplies each element first.
struct Reduction {
  ncclRedOp_t op = ncclSum;
  bool scaled = false;
  double scale = 1;
};

inline std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

// How an element is calculated with: `Number` is stored as T.
template <typename T>
struct Arithmetic {
  using Number = T;
  static Number load(T value) { return value; }
  static T store(Number value) { return value; }
};
template <>
struct Arithmetic<comm::Bf16> {
  using Number = float;
  static float load(comm::Bf16 value) { return comm::to_float(value); }
  static comm::Bf16 store(float value) { return comm::to_bf16(value); }
};
template <>
struct Arithmetic<comm::F16> {
  using Number = float;
  static float load(comm::F16 value) { return comm::to_float(value); }
  static comm::F16 store(float value) { return comm::to_f16(value); }
};

template <typename T>
void reduce_as(const Reduction& reduction, const std::vector<const std::byte*>& parts, std::size_t offset,
               std::byte* result, std::size_t count) {
  using A = Arithmetic<T>;
  using Number = typename A::Number;
  for (std::size_t i = 0; i < count; ++i) {
    T total{};
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      T element{};
      std::memcpy(&element, parts[rank] + offset + i * sizeof(T), sizeof(T));
      Number value = A::load(element);
      if (reduction.scaled)
        value = A::load(A::store(static_cast<Number>(value * static_cast<Number>(reduction.scale))));
      const Number before = A::load(total);
      Number after = value;
      if (rank > 0 && reduction.op == ncclMax) after = std::max(before, value);
      if (rank > 0 && reduction.op == ncclMin) after = std::min(before, value);
      if (rank > 0 && reduction.op == ncclSum) after = static_cast<Number>(before + value);
      total = A::store(after);
    }
    std::memcpy(result + i * sizeof(T), &total, sizeof(T));
  }
}

/// Reduces `count` elements that begin `offset` bytes after each part. False for a type that NCCL's users here do not
/// reduce.
inline bool reduce(ncclDataType_t type, const Reduction& reduction,
                   const std::vector<const std::byte*>& parts, std::size_t offset, std::byte* result,
                   std::size_t count) {
  const auto as = [&]<typename T>(T) { reduce_as<T>(reduction, parts, offset, result, count); };
  switch (type) {
    case ncclFloat32:
      as(float{});
      return true;
    case ncclFloat64:
      as(double{});
      return true;
    case ncclBfloat16:
      as(comm::Bf16{});
      return true;
    case ncclFloat16:
      as(comm::F16{});
      return true;
    case ncclInt32:
      as(std::int32_t{});
      return true;
    case ncclInt64:
      as(std::int64_t{});
      return true;
    case ncclUint8:
      as(std::uint8_t{});
      return true;
    default:
      return false;
  }
}

}  // namespace lockstep::simulated
