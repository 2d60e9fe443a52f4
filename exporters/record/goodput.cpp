#include "exporters/record/goodput.h"

#include <algorithm>
#include <cmath>

namespace lockstep::record {
namespace {

std::string percent(double share) {
  return std::to_string(std::lround(100 * share)) + " %";
}

}  // namespace

Goodput goodput_of(const Snapshot& rank, double seconds) {
  if (seconds <= 0) return {};
  const Counters& counters = rank.counters;
  const auto share = [&](std::uint64_t ns) { return static_cast<double>(ns) * 1e-9 / seconds; };
  const auto phase = [&](Phase one) { return share(counters.phase_ns[index(one)]); };
  const double computed = phase(Phase::forward) + phase(Phase::backward) + phase(Phase::optimizer);
  const double skipped =
      counters.steps == 0
          ? 0
          : std::min(1.0, static_cast<double>(counters.skipped_steps) / static_cast<double>(counters.steps));
  const std::uint64_t first = rank.resources ? rank.resources->first_step_ns : 0;
  Goodput goodput{.seconds = seconds,
                  .trained = computed * (1 - skipped),
                  .skipped = computed * skipped,
                  .start = first > rank.start_monotonic_ns ? share(first - rank.start_monotonic_ns) : 0,
                  .input = phase(Phase::data_wait) + phase(Phase::host_to_device),
                  .communication = phase(Phase::comm_exposed),
                  .checkpoint = phase(Phase::checkpoint),
                  .other = phase(Phase::other)};
  double known = goodput.trained;
  for (const auto& [name, lost] : kLostTimes) known += goodput.*lost;
  goodput.between_steps = std::max(0.0, 1 - known);
  return goodput;
}

std::string to_text(const Goodput& goodput, const std::string& duration) {
  std::vector<std::pair<double, const char*>> lost;
  for (const auto& [name, share] : kLostTimes) lost.emplace_back(goodput.*share, name);
  std::stable_sort(lost.begin(), lost.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = percent(goodput.trained) + " of " + duration + " trained";
  const char* before = "; the rest: ";
  for (const auto& [share, name] : lost) {
    if (share < 0.005) break;
    text += std::exchange(before, ", ") + (name + (" " + percent(share)));
  }
  return text;
}

}  // namespace lockstep::record
