// Finds accesses to the same memory that nothing orders.
//
// Threads: one at a time (the simulator's lock).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/device/vector_clock.h"

namespace lockstep::simulated {

struct Range {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool write = false;

  const std::byte* end() const { return begin + bytes; }
};

/// What an operation is called in findings: the call, and the functions that called it.
struct Label {
  /// Takes the calls of the current thread.
  explicit Label(const char* call);

  /// "cudaMemsetAsync at communicator.cpp:133 < train.cpp:12"
  std::string text() const;

  const char* call;
  std::array<void*, 12> frames{};
  int depth = 0;
};

class RaceDetector {
 public:
  /// `known`: the operations that have ended before the new one begins.
  void access(const Range& range, Stamp stamp, const VectorClock& known, const Label& label,
              std::vector<std::string>& findings);
  /// The memory was freed.
  void forget(const Range& range);

 private:
  struct Access {
    Range range;
    Stamp stamp;
    Label label;
  };

  std::vector<Access> accesses_;
};

}  // namespace lockstep::simulated
