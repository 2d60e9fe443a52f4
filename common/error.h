// Throwing lockstep::Error (common/leaf/error.h) with a formatted message.
//
// Threads: safe from any.
#pragma once

#include <fmt/format.h>

#include <cerrno>

#include "common/leaf/error.h"

namespace lockstep {

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws UsageError with a formatted message.
template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

/// A system call has failed.
class SystemError : public Error {
 public:
  SystemError(int code, const std::string& message) : Error(message), code_(code) {}
  /// The errno of the call.
  int code() const { return code_; }

 private:
  int code_;
};

/// Throws SystemError "<message>: <text of errno>", reading errno first.
template <typename... Args>
[[noreturn]] void fail_errno(fmt::format_string<Args...> format, Args&&... args) {
  const int error = errno;
  throw SystemError(
      error, fmt::format("{}: {}", fmt::format(format, std::forward<Args>(args)...), errno_text(error)));
}

}  // namespace lockstep
