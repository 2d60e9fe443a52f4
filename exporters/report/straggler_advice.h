// The sentences on ranks that others wait for: the cause, the number, the step without it, and the remedy.
//
// Threads: safe from any.
#pragma once

#include "exporters/report/advice.h"
#include "exporters/report/stragglers.h"

namespace lockstep::report {

/// `late` is one of `all.found`.
Advice advice_on(const Stragglers& all, const Straggler& late);

}  // namespace lockstep::report
