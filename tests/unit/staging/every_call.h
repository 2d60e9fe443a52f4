// Kills work, or fails it, at each of its calls of the file system.
#pragma once

#include <functional>

#include "common/error.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::staging_test {

/// Work that must survive an accident at each of its calls.
struct EveryCall {
  std::function<void()> prepare = [] {};  ///< before each round
  std::function<void(FileSystem&)> work;
  std::function<void()> check;  ///< after each round, also after the last one, which has no accident
  std::function<void(const Error&)> refused = [](const Error&) {};  ///< gets what the work has thrown
  bool reads = false;                                               ///< reads and syncfs count as calls too
};
/// Does the work in a process that is killed at its first call, then at its second, until it ends without. Returns the
/// number of kills.
int kill_at_every_call(const EveryCall& every);
/// The same with one call that fails. Returns how often the work threw Error.
int fail_at_every_call(const EveryCall& every, int error);

}  // namespace lockstep::staging_test
