// The one family of exceptions of the libraries. A message is one line: what failed, on what (rank, node,
// file, offset), and what to do. Nothing here crosses a C interface; tools print what() and exit
// (common/tool.h).
//
// Threads: values, no shared state.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <stdexcept>
#include <string>

namespace lockstep {

/// Work failed. Tools exit with 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The call itself is wrong (an option, a value). Tools exit with 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

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

/// The text of an errno value ("No such file or directory").
std::string errno_text(int error);

/// Throws Error "<message>: <text of errno>", reading errno first.
template <typename... Args>
[[noreturn]] void fail_errno(fmt::format_string<Args...> format, Args&&... args) {
  const int error = errno;
  throw Error(fmt::format("{}: {}", fmt::format(format, std::forward<Args>(args)...), errno_text(error)));
}

}  // namespace lockstep
