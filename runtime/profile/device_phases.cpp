#include "runtime/profile/device_phases.h"

#include <utility>

namespace lockstep::profile {
namespace {

// A device that waits for each launch needs as long for a phase as the host; one that is busy needs longer.
constexpr double kAsLong = 1.1;

// Only a long evaluation has more marks than this between two steps. Not fewer: a query is forbidden while a micro-batch
// becomes a CUDA graph.
constexpr std::size_t kMaxMarks = 4096;

}  // namespace

DevicePhases::DevicePhases(std::unique_ptr<DeviceClock> clock) : clock_(std::move(clock)) {
  current_.begin = mark();
}

DeviceClock::Mark DevicePhases::mark() {
  auto made = clock_->mark();
  failed_ = failed_ || !made;
  return made;
}

void DevicePhases::end_interval(std::optional<record::Phase> phase) {
  auto end = mark();
  if (!end) return;
  current_.intervals.push_back({phase, std::move(end)});
  while (current_.intervals.size() > kMaxMarks && clock_->reached(current_.intervals.front().end))
    count_first_interval(current_);
}

void DevicePhases::count_first_interval(Step& step) {
  const Interval interval = std::move(step.intervals.front());
  step.intervals.pop_front();
  if (interval.phase) {
    step.phase_ns[record::index(*interval.phase)] += clock_->ns_between(step.begin, interval.end);
  }
  step.begin = interval.end;
}

void DevicePhases::begin_step() {
  current_ = {};
  current_.begin = mark();
}

void DevicePhases::end_step(std::uint64_t ended_ns, const record::StepCounts& counts,
                            const std::array<std::uint64_t, record::kPhases>& host_ns) {
  if (failed_ || current_.intervals.empty()) return;
  current_.ended_ns = ended_ns;
  current_.counts = counts;
  current_.host_ns = host_ns;
  const std::size_t phases = current_.intervals.size();
  current_.kept_up = clock_->reached(phases > 1 ? current_.intervals[phases - 2].end : current_.begin);
  Step next;
  next.begin = current_.intervals.back().end;
  ended_.push_back(std::exchange(current_, std::move(next)));
}

std::optional<DeviceStep> DevicePhases::take(bool wait) {
  if (failed_ || ended_.empty()) return std::nullopt;
  const auto& end = ended_.front().intervals.back().end;
  if (wait) clock_->wait(end);
  if (!wait && !clock_->reached(end)) return std::nullopt;
  Step step = std::move(ended_.front());
  ended_.pop_front();
  while (!step.intervals.empty()) count_first_interval(step);
  DeviceStep taken{.phase_ns = step.phase_ns, .ended_ns = step.ended_ns, .counts = step.counts};
  for (const std::uint64_t ns : taken.phase_ns) taken.step_ns += ns;
  using record::Phase;
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer}) {
    const std::uint64_t ns = taken.phase_ns[record::index(phase)];
    const auto host = static_cast<double>(step.host_ns[record::index(phase)]);
    if (step.kept_up && static_cast<double>(ns) <= kAsLong * host) taken.launch_ns += ns;
  }
  return taken;
}

}  // namespace lockstep::profile
