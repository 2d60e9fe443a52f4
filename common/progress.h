// Draws a progress line on a terminal. Logs and pipes get nothing, so they contain no control characters.
//
// Threads: one thread drives one Progress.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

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
