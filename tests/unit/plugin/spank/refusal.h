// What a Refusal says, for tests.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "plugin/spank/report.h"

namespace lockstep::spank {

/// The text of the Refusal that `work` throws, or "" where it throws none.
template <typename Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "";
}

}  // namespace lockstep::spank
