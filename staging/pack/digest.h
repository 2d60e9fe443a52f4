// XXH3 digests of data: 128 bits for files and 64 bits for single payloads, as `xxhsum -H2` and `xxhsum -H3`
// print them. They detect damage, but not forgery.
//
// Threads: safe from any; a Hasher belongs to one thread at a time.
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

/// XXH3-128 of bytes in memory.
Digest digest_of(std::span<const std::byte> data);

/// XXH3-64 of bytes in memory.
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
  /// The digest of all bytes since the last reset; for a hasher of 128 bits.
  Digest digest() const;
  /// The same for a hasher of 64 bits.
  std::uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  Width width_;
};

}  // namespace lockstep::pack
