// XXH3 digests of data: 128 bits for whole files, 64 bits for single payloads, as `xxhsum -H2` and `xxhsum
// -H3` print them. They find damage, not forgery.
//
// Threads: values; a Hasher belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct XXH3_state_s;

namespace lockstep::pack {

/// An XXH3-128 digest in canonical (big-endian) byte order.
using Digest = std::array<std::uint8_t, 16>;

/// 32 hex digits.
std::string to_hex(const Digest& digest);

/// XXH3-128 of bytes at hand.
Digest digest_of(std::span<const std::byte> data);

/// XXH3-64 of bytes at hand.
std::uint64_t xxh3_64(std::span<const std::byte> data);

/// XXH3 of bytes that come in pieces.
class Hasher {
 public:
  enum class Width { bits64, bits128 };
  explicit Hasher(Width width = Width::bits128);
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void reset();
  void update(std::span<const std::byte> data);
  /// Of all bytes since the last reset, for a hasher of 128 bits.
  Digest digest() const;
  /// Of all bytes since the last reset, for a hasher of 64 bits.
  std::uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  Width width_;
};

}  // namespace lockstep::pack
