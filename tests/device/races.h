// Finds accesses to the same memory that nothing orders.
//
// Threads: one at a time (the simulator's lock).
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/device/vector_clock.h"

namespace lockstep::simulated {

struct Range {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool write = false;

  const std::byte* end() const { return begin + bytes; }
};

/// An operation in findings: the call, and the functions that called it.
struct Label {
  /// Takes the calls of the current thread.
  explicit Label(const char* call);

  /// "cudaMemsetAsync at communicator.cpp:133 < train.cpp:12"
  std::string text() const;
  /// "communicator.cpp:133": the innermost of these functions.
  std::string site() const;

  const char* call;
  std::array<void*, 40> frames{};  ///< LibTorch's are many
  int depth = 0;
};

/// Makes its text: naming the lines of a program takes a while.
using Finding = std::function<std::string()>;

class RaceDetector {
 public:
  /// `block` identifies the allocation in which the range lies. `known`: the operations that have ended before the new
  /// one begins.
  void access(const void* block, const Range& range, Stamp stamp, const VectorClock& known,
              const Label& label, std::vector<Finding>& findings);
  /// Whether all accesses by calls whose names begin so are known to have ended.
  bool knows_all(std::string_view calls, const VectorClock& known) const;
  /// The memory was freed.
  void forget(const void* block);

 private:
  struct Access {
    Range range;
    Stamp stamp;
    Label label;
  };

  std::unordered_map<const void*, std::vector<Access>> accesses_;  // by block
};

}  // namespace lockstep::simulated
