// Converts the two half types to and from float, rounding to nearest, ties to even.
//
// Threads: safe from any.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep::comm {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
  const auto quiet = static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return {(bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded};  // a NaN stays a NaN
}

inline float to_float(F16 value) {
  // The shifted bits are a float whose exponent is too small by 112. A subnormal goes into the last bits of 0.5, which
  // count 2^-24, and comes out as a normal float, because World flushes denormal ones.
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = (value.bits & 0x7FFFU) << 13U;
  const float subnormal = std::bit_cast<float>((value.bits & 0x3FFU) + 0x3F000000U) - 0.5F;
  const std::uint32_t finite =
      magnitude < (0x0400U << 13U) ? std::bit_cast<std::uint32_t>(subnormal) : magnitude + (112U << 23U);
  const std::uint32_t special = magnitude | 0x7F800000U;  // infinity and NaN
  const std::uint32_t bits = magnitude >= (0x7C00U << 13U) ? special : finite;
  return std::bit_cast<float>(sign | bits);
}

inline F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const auto with_sign = [sign](std::uint32_t rest) { return F16{static_cast<std::uint16_t>(sign | rest)}; };
  if (magnitude > 0x7F800000U) return with_sign(0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return with_sign(0x7C00U);  // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 makes the float unit round to a multiple of 2^-24, which ends up in the lowest
    // bits.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    return with_sign(std::bit_cast<std::uint32_t>(aligned) - 0x3F000000U);
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13U) & 1U);
  return with_sign((rounded - 0x38000000U) >> 13U);
}

}  // namespace lockstep::comm
