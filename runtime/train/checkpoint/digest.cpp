#include "runtime/train/checkpoint/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace lockstep::checkpoint {

std::string digest_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

}  // namespace lockstep::checkpoint
