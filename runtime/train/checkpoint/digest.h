// The digest of a checkpoint's files: XXH3 of 128 bits, as `xxhsum -H2` prints it. It detects damage, but not
// forgery.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

/// 32 hex digits.
std::string digest_of(std::span<const std::byte> bytes);
std::string digest_of(std::string_view text);

}  // namespace lockstep::checkpoint
