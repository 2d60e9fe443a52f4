#include "exporters/top/live.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/median.h"
#include "exporters/record/waits.h"
#include "exporters/report/resource_view.h"
#include "exporters/report/text.h"

namespace lockstep::top {
namespace {

using record::Snapshot;
using record::Step;

double seconds_since(std::uint64_t then_ns, std::uint64_t now_ns) {
  return then_ns < now_ns ? static_cast<double>(now_ns - then_ns) * 1e-9 : 0;
}

std::string state_of(const Snapshot& rank) {
  if (rank.alive) return "running";
  return rank.finished_unix_ns != 0 ? "finished" : "died";
}

void average(const Snapshot& rank, LiveRank& live) {
  const auto first = rank.steps.end() - static_cast<std::ptrdiff_t>(std::min(kLastSteps, rank.steps.size()));
  const std::vector<Step> steps(first, rank.steps.end());
  if (steps.empty()) return;
  double step_ns = 0;
  double own_ns = 0;
  double wait_ns = 0;
  double tokens = 0;
  std::array<double, record::kPhases> phase_ns{};
  for (const Step& step : steps) {
    step_ns += static_cast<double>(step.step_ns);
    own_ns += static_cast<double>(step.own_ns());
    wait_ns += static_cast<double>(step.comm_wait_ns);
    tokens += static_cast<double>(step.tokens);
    for (std::size_t i = 0; i < phase_ns.size(); ++i) phase_ns[i] += static_cast<double>(step.phase_ns[i]);
  }
  const double per_step_ms = 1e-6 / static_cast<double>(steps.size());
  live.step_ms = step_ns * per_step_ms;
  live.own_ms = own_ns * per_step_ms;
  if (rank.counters.communication_measured()) live.wait_ms = wait_ns * per_step_ms;
  if (const auto wait = record::longest_wait(record::waits_by_rank(steps))) live.late_rank = wait->first;
  if (step_ns == 0) return;
  live.tokens_per_second = tokens * 1e9 / step_ns;
  for (std::size_t i = 0; i < phase_ns.size(); ++i) live.shares[i] = phase_ns[i] / step_ns;
}

LiveRank measure_rank(const Snapshot& rank, std::uint64_t now_ns) {
  LiveRank live;
  live.rank = rank.identity.rank;
  live.node = rank.identity.node;
  live.state = state_of(rank);
  live.steps = rank.counters.steps;
  average(rank, live);
  if (rank.resources) {
    live.cpus = report::cpus_used(rank);
    live.memory_bytes = rank.resources->memory_bytes;
    if (rank.resources->gpu.sampled()) live.gpu = rank.resources->gpu;
  }
  if (!rank.alive) return live;  // the record may be of another node, which has another clock
  live.now = rank.doing;
  if (rank.doing) live.now_seconds = seconds_since(rank.doing_since_ns, now_ns);
  const bool stepped = rank.counters.steps > 0;
  live.idle_seconds =
      seconds_since(stepped ? rank.counters.last_step_end_ns : rank.start_monotonic_ns, now_ns);
  return live;
}

}  // namespace

Live measure(const report::Run& run, std::uint64_t now_ns) {
  Live live;
  live.job = run.ranks.front().identity;
  live.title = report::title(run);
  live.state = report::state(run);
  live.notes = run.notes;
  std::vector<double> own;
  for (const Snapshot& rank : run.ranks) {
    live.ranks.push_back(measure_rank(rank, now_ns));
    live.tokens_per_second += live.ranks.back().tokens_per_second;
    if (live.ranks.back().own_ms > 0) own.push_back(live.ranks.back().own_ms);
  }
  live.median_own_ms = median(std::move(own));
  live.verdict = report::find_verdict(run, report::common_steps(run));
  std::set<std::string> nodes;
  for (const LiveRank& rank : live.ranks) nodes.insert(rank.node);
  if (static_cast<int>(live.ranks.size()) < live.job.size) {
    live.notes.push_back(fmt::format(
        "these are the ranks on {}; for another node: srun --jobid={} --overlap --pty -N1 -n1 -w NODE lockstep-top {}",
        fmt::join(nodes, ", "), live.job.job_id, live.job.job_id));
  }
  return live;
}

}  // namespace lockstep::top
