// Prints and reads sizes, rates and durations, and prints texts that others have chosen.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// "512 B", "1.5 MiB": binary units, three significant digits.
std::string format_bytes(std::uint64_t bytes);

/// "850 us", "12.3 ms", "4.56 s", "3 min 20 s", "2 h 05 min".
std::string format_seconds(double seconds);

/// "812", "12.3 k", "4.56 M": decimal units for counts of tokens, samples and the like.
std::string format_count(double count);

/// Reads "4096", "64K", "1.5G", "200MB", "2GiB" as bytes (binary units). Throws UsageError naming the text.
std::uint64_t parse_bytes(std::string_view text);

}  // namespace lockstep
