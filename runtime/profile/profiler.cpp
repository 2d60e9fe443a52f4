#include "runtime/profile/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/process.h"
#include "runtime/profile/device_work.h"
#include "runtime/profile/operator_table.h"
#include "runtime/profile/profile_summary.h"

namespace lockstep::profile {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0640;  // as the records

}  // namespace

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  std::vector<std::string> old = {trace_name(options_.rank.rank)};
  if (options_.first) old.insert(old.end(), {"operators.txt", "profile.json"});
  for (const std::string& name : old) {
    const fs::path file = options_.folder / name;
    std::error_code error;
    fs::remove(file, error);
    if (error) fail("cannot remove {} of an earlier profile: {}", file.string(), error.message());
  }
  enter(options_.schedule.state(0));
}

Profiler::~Profiler() {
  enter(Schedule::State::off);
}

void Profiler::enter(Schedule::State state) {
  state_ = state;
  const bool on = state != Schedule::State::off;
  if (options_.trace_operators) options_.trace_operators(on);
  if (on) {
    start_spans(options_.device_bytes);
    if (options_.trace_device) options_.trace_device(true);
  } else {
    if (options_.trace_device) options_.trace_device(false);
    stop_spans();
  }
}

bool Profiler::end_step() noexcept {
  return without_throwing([&] {
    ++steps_;
    const bool complete = options_.schedule.cycles_ended(steps_) > written_;
    if (complete) write();
    const auto next = options_.schedule.state(steps_);
    if (complete || next != state_) enter(next);
    return complete;
  });
}

void Profiler::finish() noexcept {
  without_throwing([&] {
    if (state_ == Schedule::State::active) write();
    enter(Schedule::State::off);
    if (options_.first && written_ == 0) {
      fmt::print(
          stderr,
          "lockstep: there is no profile, because the job had only {} steps: lower wait in the schedule\n",
          steps_);
    }
    return true;
  });
}

template <typename Work>
bool Profiler::without_throwing(Work work) noexcept {
  if (failed_) return false;
  try {
    return work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {} cannot write its profile: {}\n",
               rank_name(options_.rank.rank, options_.rank.node), error.what());
  }
  failed_ = true;
  enter(Schedule::State::off);
  return true;
}

void Profiler::write() {
  if (options_.trace_device) options_.trace_device(false);
  const Spans spans = stop_spans();
  const fs::path trace = options_.folder / trace_name(options_.rank.rank);
  write_file_atomically(
      trace, trace_of(spans, options_.rank, fs::exists(trace) ? read_text_file(trace) : std::string()),
      kMode);
  ++written_;
  if (spans.dropped > 0) {
    fmt::print(
        stderr,
        "lockstep: the profile of {} lacks the last {} events, because it holds at most {}: profile fewer steps\n",
        rank_name(options_.rank.rank, options_.rank.node), spans.dropped, kMaxSpans);
  }
  if (options_.first) write_summary(spans);
}

void Profiler::write_summary(const Spans& spans) {
  const auto steps = std::count_if(spans.spans.begin(), spans.spans.end(),
                                   [](const Span& span) { return span.kind == SpanKind::step; });
  operators_ += fmt::format("{}Operators of {} in {} steps, until step {}\n\n{}",
                            operators_.empty() ? "" : "\n", rank_name(options_.rank.rank, options_.rank.node),
                            steps, steps_, operator_table(operator_times(spans.spans)));
  if (const auto kernels = kernel_times(spans.spans); !kernels.empty())
    operators_ += "\nKernels and copies of the GPU\n\n" + operator_table(kernels);
  write_file_atomically(options_.folder / "operators.txt", operators_, kMode);
  const std::string summary =
      profile_summary(spans, options_.rank).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  write_file_atomically(options_.folder / "profile.json", summary + '\n', kMode);
  if (written_ > 1) return;
  fmt::print(
      stderr,
      "lockstep: the profile is in {0}: lockstep-report {0} --trace trace.json joins the traces of the ranks; https://ui.perfetto.dev opens them\n",
      options_.folder.string());
}

}  // namespace lockstep::profile
