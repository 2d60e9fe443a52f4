// The digest of a checkpoint's files: XXH3 of 128 bits, as `xxhsum -H2` prints it. It detects damage, but not
// forgery.
//
// Threads: safe from any; a Digest belongs to one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

/// Of bytes that come in parts.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  void add(std::span<const std::byte> bytes);
  /// 32 hex digits.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 32 hex digits.
std::string digest_of(std::span<const std::byte> bytes);
std::string digest_of(std::string_view text);

}  // namespace lockstep::checkpoint
