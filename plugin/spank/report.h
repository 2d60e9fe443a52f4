// What the plugin says to people: one line per event, "lockstep: what happened, on what, what to do".
//
// Threads: safe from any.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep::spank {

/// Something the user or the admin asked for that cannot be done. what() is the line without "lockstep: ".
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Writes "lockstep: <text>\n" to standard error in one write, so that lines of many tasks do not mix.
/// Control characters in the text (a hostile file name) become '?'.
void say(const std::string& text) noexcept;

/// The same into the daemon's log, for callbacks that have no user's standard error.
void log(const std::string& text) noexcept;

/// "No such file or directory" for an errno value.
std::string errno_text(int error);

}  // namespace lockstep::spank
