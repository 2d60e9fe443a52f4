// Advice on what to change: the number that shows the need, and the command, option or line of code that mends it.
// docs/users/metrics.md lists the rules.
//
// Threads: safe from any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exporters/report/balance.h"
#include "exporters/report/stragglers.h"
#include "exporters/report/verdict.h"

namespace lockstep::report {

struct Advice {
  std::string rule;           ///< its name in the documentation
  std::optional<Bound> part;  ///< of the step, which the remedy makes shorter
  std::string finding;        ///< a sentence with the number
  std::string remedy;         ///< a sentence with the command, option or line of code

  std::string text() const { return finding + " " + remedy; }
};

/// All that a report says about a run. The rules read the members before `advice`.
struct Diagnosis {
  Stragglers late{};
  std::vector<MemoryUse> memory{};
  std::optional<Verdict> verdict{};  ///< none if no step has ended on all ranks
  std::optional<Balance> balance{};  ///< none if it is not known
  bool python = false;           ///< lockstep.py wrote the records of all ranks, so remedies are in Python
  std::vector<Advice> advice{};  ///< empty if nothing stands out
};

/// One pass over the steps of all ranks.
Diagnosis diagnose(const Run& run);

/// The texts of `found.advice`, at least one: if nothing stands out, the numbers that show this.
std::vector<std::string> advise(const Run& run, const Diagnosis& found);

}  // namespace lockstep::report
