// Shows changing lines on the whole terminal, as top does. Restores the user's screen, cursor and settings in the
// destructor, at a stop (Ctrl-Z), and at every signal that can be caught.
//
// Threads: main's thread, while it is the only one: the signals are blocked in this thread and read from a file
// descriptor.
#pragma once

#include <termios.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/leaf/unique_fd.h"

namespace lockstep::top {

class Screen {
 public:
  /// Takes over the terminal of standard output; reads keys from standard input if that is a terminal too. Throws
  /// Error if the kernel refuses.
  Screen();
  ~Screen() { leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Size {
    std::size_t columns = 80;
    std::size_t rows = 24;
  };
  Size size() const;

  /// Replaces the whole content. The lines must fit: a longer one would wrap. Throws Error if the terminal is gone.
  void show(const std::vector<std::string>& lines) const;

  /// Waits for `time`, or until the size changes. Returns false if the user has pressed q or Ctrl-C, or a signal asks
  /// the program to end.
  bool wait(std::chrono::milliseconds time);

 private:
  enum class Event { none, redraw, end };
  void enter() const;
  void leave() const noexcept;
  Event read_signal() const;
  Event read_key();

  UniqueFd signals_;
  std::optional<termios> settings_;  // before; none if there is no keyboard
  bool keyboard_ = false;
};

}  // namespace lockstep::top
