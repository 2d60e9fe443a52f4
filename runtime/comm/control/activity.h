// Records what this rank is doing: which operations it has asked for and which have ended. Recording takes
// about 50 ns per operation. The record is read only when something is wrong, and is then this rank's answer
// to the others (comm/control/control_channel.h).
//
// Record the operations that the program asks for, on any communicator, but not the parts into which a
// communicator divides them: ranks compare the numbers of operations.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::comm {

/// `operation`: its name from describe(), "all_reduce of bucket 3 (1024 bytes)". At most 160 bytes are kept. Returns its
/// number, counted from 1.
std::uint64_t note_asked(std::string_view operation);
void note_began(std::uint64_t number);
void note_ended(std::uint64_t number);

/// Records, while it lives, that a thread of this rank is blocked in an operation.
class WaitingNote {
 public:
  WaitingNote();
  ~WaitingNote();
  WaitingNote(const WaitingNote&) = delete;
  WaitingNote& operator=(const WaitingNote&) = delete;
};

struct Activity {
  std::uint64_t asked = 0;  ///< operations since the process started
  std::uint64_t ended = 0;
  /// The oldest operation that has not ended; empty if there is none.
  std::string oldest;
  std::uint64_t oldest_number = 0;  ///< counted from 1
  bool oldest_began = false;
  bool waiting = false;  ///< a thread is blocked in an operation
  /// When the oldest was asked for, or, if there is none, when the last one ended. Monotonic nanoseconds; 0:
  /// never.
  std::uint64_t since_ns = 0;
  std::string last_ended;  ///< empty if none has
};

Activity current_activity();

}  // namespace lockstep::comm
