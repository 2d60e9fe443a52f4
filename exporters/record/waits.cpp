#include "exporters/record/waits.h"

#include <utility>

namespace lockstep::record {

std::map<int, double> waits_by_rank(const std::vector<Step>& steps) {
  std::map<int, double> waits;
  for (const Step& step : steps) {
    if (step.waited_for < 0 || !std::in_range<int>(step.waited_for) || step.comm_wait_ns == 0) continue;
    waits[static_cast<int>(step.waited_for)] +=
        static_cast<double>(step.comm_wait_ns) * 1e-9 / static_cast<double>(steps.size());
  }
  return waits;
}

}  // namespace lockstep::record
