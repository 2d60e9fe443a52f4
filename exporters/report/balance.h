// Compares the balance that the plan promised with that on the clock. The planner gives all ranks of a step equal cost
// a*L + b*L*L; if the slowest rank still computes longer than the mean one, the cost may not describe the model. Then a fit of
// the times of forward and backward to the ranks' tokens and squared lengths gives a better one.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

/// The slowest rank's work ÷ the mean rank's, means over steps.
struct Balance {
  double promised = 1;      ///< by the plan's cost
  double measured = 1;      ///< time of forward and backward
  double fitted = 1;        ///< by the cost that fits the measured times best
  double cost_ratio = 0;    ///< the plan's a / b; infinite: it counts tokens only
  double fitted_ratio = 0;  ///< infinite: the time depends on the tokens only
  bool supported =
      false;  ///< both halves of the steps say so, and it explains most of what the plan did not promise
};

/// None if the ranks' work was not planned by our loader, or too few steps are known. `rows` are common_steps(run).
std::optional<Balance> find_balance(const Run& run, const std::vector<StepRow>& rows);

/// The cost that fits and the plan's, as an option of the plan, and how much they differ: "{2300, 1}", "{768, 1}", ": a
/// should be 3 times as large beside b".
std::vector<std::string> cost_texts(const Balance& balance);

/// "balance: …", a line of the report.
std::string balance_line(const Balance& balance);

/// null for none.
nlohmann::json balance_json(const std::optional<Balance>& balance);

}  // namespace lockstep::report
