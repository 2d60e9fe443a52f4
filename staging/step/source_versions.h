// Finds out which of the sources that a job has staged have changed since.
//
// Threads: safe from any.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// Looks at each staged source, which may take long: not with the lock of the job's folder. Returns those whose version is
/// another one now. `say` gets one line for each of them, and for each source that cannot be seen: that does not stop
/// the step, which uses its copy.
std::vector<std::string> changed_sources(const std::vector<PutResult>& staged,
                                         const std::function<void(const std::string&)>& say);

}  // namespace lockstep::transfer
