// The plugin's messages: one line per event, "lockstep: what happened, on what, what to do". A failure is a
// lockstep::Error, whose what() is that line without "lockstep: ".
//
// Threads: safe from any.
#pragma once

#include <string>

#include "common/leaf/error.h"

namespace lockstep::spank {

/// Writes "lockstep: <text>\n" to standard error in one write, so that lines of many tasks do not mix.
/// Control characters in the text (a hostile file name) become "\x0a".
void say(const std::string& text) noexcept;

/// The same to the daemon's log, for callbacks without a user's standard error.
void log(const std::string& text) noexcept;

}  // namespace lockstep::spank
