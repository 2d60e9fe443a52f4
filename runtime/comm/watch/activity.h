// What this rank is doing: which operations it has asked for and which have ended. Kept all the time, for
// some 50 ns an operation, and read only when something is wrong: then it is what this rank answers to those
// that wait for it (comm/watch/watch.h).
//
// Note the operations that the program asks for, on whichever communicator, not the parts that a communicator
// makes of them: their numbers are compared between ranks.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::comm {

/// `operation` as describe() writes it: "all_reduce of bucket 3 (1024 bytes)". Names may repeat; the one that
/// began or ended is then the first of that name. At most 160 bytes are kept.
void note_asked(std::string_view operation);
void note_began(std::string_view operation);
void note_ended(std::string_view operation);

/// While it lives a thread of this rank waits for an operation and does nothing else.
class WaitingNote {
 public:
  WaitingNote();
  ~WaitingNote();
  WaitingNote(const WaitingNote&) = delete;
  WaitingNote& operator=(const WaitingNote&) = delete;
};

struct Activity {
  std::uint64_t asked = 0;  ///< operations, from this process's start
  std::uint64_t ended = 0;
  /// The oldest that has not ended; empty when there is none.
  std::string oldest;
  std::uint64_t oldest_number = 0;  ///< from 1, in the order of asking
  bool oldest_began = false;
  bool waiting = false;  ///< some thread waits
  /// When the oldest was asked for; without one, when the last ended. Monotonic nanoseconds; 0: never.
  std::uint64_t since_ns = 0;
  std::string last_ended;  ///< empty when none has
};

Activity current_activity();

}  // namespace lockstep::comm
