// The remedies of rules for jobs in Python, in place of those for programs that link our runtime.
//
// Threads: safe from any.
#pragma once

#include <vector>

#include "exporters/report/advice.h"

namespace lockstep::report {

/// Whether lockstep.py wrote the records of all ranks.
bool from_python(const Run& run);

/// Replaces the remedies that are C++.
void use_python_remedies(std::vector<Advice>& advice);

}  // namespace lockstep::report
