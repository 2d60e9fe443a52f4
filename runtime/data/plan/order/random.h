// Random numbers that are the same on every machine and with every standard library, so that all ranks make
// the same plan. (std::shuffle and the standard distributions differ between libraries.)
//
// Threads: a Random belongs to one thread at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <utility>

namespace lockstep::data {

/// xoshiro256** by Blackman and Vigna, seeded through splitmix64.
class Random {
 public:
  /// Different triples give unrelated sequences.
  Random(std::uint64_t seed, std::uint64_t epoch, std::uint64_t stream) {
    std::uint64_t mixed = seed;
    mixed = splitmix(mixed) ^ epoch;
    mixed = splitmix(mixed) ^ stream;
    for (std::uint64_t& word : state_) word = splitmix(mixed);
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17U;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// Uniform in [0, bound); bound > 0. Lemire's multiplication; its bias is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64U);
  }

  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t n = values.size(); n > 1; --n) std::swap(values[n - 1], values[below(n)]);
  }

 private:
  static std::uint64_t splitmix(std::uint64_t& state) {
    std::uint64_t word = (state += 0x9e3779b97f4a7c15U);
    word = (word ^ (word >> 30U)) * 0xbf58476d1ce4e5b9U;
    word = (word ^ (word >> 27U)) * 0x94d049bb133111ebU;
    return word ^ (word >> 31U);
  }

  std::uint64_t state_[4];
};

}  // namespace lockstep::data
