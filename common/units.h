// Prints and reads sizes, rates and durations, and draws a progress line on a terminal. Logs and pipes get none, so they
// contain no control characters.
//
// Threads: safe from any; one thread drives one Progress.
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

class Progress {
 public:
  /// The unit of the numbers.
  enum class Unit { bytes, things };

  /// `label` is printed before the bar; `total` is in bytes (or things), 0 if unknown. Draws only if standard
  /// error is a terminal.
  Progress(std::string label, std::uint64_t total, Unit unit = Unit::bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Bytes (or things) done so far; redraws at most ten times a second.
  void update(std::uint64_t done);

 private:
  std::string label_;
  std::uint64_t total_;
  Unit unit_;
  std::uint64_t begin_ns_;
  std::uint64_t drawn_ns_ = 0;
  bool terminal_;
};

}  // namespace lockstep
