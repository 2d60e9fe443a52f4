// Advice on what to change: the number that shows the need, and the command, option or line of code that mends it.
// docs/users/metrics.md lists the rules.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <vector>

#include "exporters/report/stragglers.h"

namespace lockstep::report {

struct Advice {
  std::string rule;     ///< its name in the documentation
  std::string finding;  ///< a sentence with the number
  std::string remedy;   ///< a sentence with the command, option or line of code

  std::string text() const { return finding + " " + remedy; }
};

/// Empty if nothing stands out, or if no step has ended yet. `late` is find_stragglers(run).
std::vector<Advice> find_advice(const Run& run, const Stragglers& late);

/// The texts, at least one: if nothing stands out, the numbers that show this.
std::vector<std::string> advise(const Run& run, const Stragglers& late);

}  // namespace lockstep::report
