// The message of an Error, for tests.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "common/leaf/error.h"

namespace lockstep {

/// The text of the Error that `work` throws, or "" if it throws none.
template <typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep
