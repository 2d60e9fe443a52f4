#include "exporters/report/step_rows.h"

#include <map>
#include <utility>

namespace lockstep::report {
namespace {

constexpr std::uint64_t kFirstSteps = 2;
constexpr std::size_t kFewSteps = 8;

}  // namespace

std::vector<StepRow> common_steps(const Run& run) {
  std::map<std::uint64_t, StepRow> rows;
  for (const record::Snapshot& rank : run.ranks) {
    for (const record::Step& step : rank.steps) rows[step.index].push_back(&step);
  }
  std::vector<StepRow> common;
  for (auto& [index, row] : rows) {
    if (row.size() == run.ranks.size()) common.push_back(std::move(row));
  }
  if (common.size() > kFewSteps) {
    std::erase_if(common, [](const StepRow& row) { return row.front()->index < kFirstSteps; });
  }
  return common;
}

}  // namespace lockstep::report
