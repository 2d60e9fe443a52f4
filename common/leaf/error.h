// The one family of exceptions of the libraries. A message is one line: what failed, on what (rank, node,
// file, offset), and what to do. Exceptions never cross a C interface; tools print what() and exit
// (common/tool.h). common/error.h adds functions that format the message.
//
// Threads: values, no shared state.
#pragma once

#include <stdexcept>
#include <string>
#include <system_error>

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

/// The text of an errno value ("No such file or directory").
inline std::string errno_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace lockstep
