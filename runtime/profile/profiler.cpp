#include "runtime/profile/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

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

std::string prefix_of_cycle(std::uint64_t cycle) {
  return fmt::format("trace-{:06}-", cycle);
}

bool is_part(const fs::path& file) {
  return file.extension() == ".part" && file.filename().string().starts_with("trace-");
}

}  // namespace

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  if (options_.joins) {
    std::vector<fs::path> old = {options_.folder / "trace.json", options_.folder / "operators.txt",
                                 options_.folder / "profile.json"};
    for (const auto& entry : fs::directory_iterator(options_.folder)) {
      if (is_part(entry.path())) old.push_back(entry.path());
    }
    for (const fs::path& file : old) {
      std::error_code error;
      fs::remove(file, error);
      if (error) fail("cannot remove {} of an earlier profile: {}", file.string(), error.message());
    }
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
    if (complete) write_part();
    const auto next = options_.schedule.state(steps_);
    if (complete || next != state_) enter(next);
    return join_parts(true) || complete;
  });
}

void Profiler::finish() noexcept {
  without_throwing([&] {
    if (state_ == Schedule::State::active) write_part();
    enter(Schedule::State::off);
    return true;
  });
}

void Profiler::join() noexcept {
  without_throwing([&] {
    if (options_.joins && written_ == 0) {
      fmt::print(
          stderr,
          "lockstep: there is no profile, because the job had only {} steps: lower wait in the schedule\n",
          steps_);
    }
    return join_parts(false);
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

void Profiler::write_part() {
  if (options_.trace_device) options_.trace_device(false);
  const Spans spans = stop_spans();
  const std::string name = fmt::format("{}{:06}.part", prefix_of_cycle(written_), options_.rank.rank);
  write_file_atomically(options_.folder / name, trace_events(spans, options_.rank), kMode);
  ++written_;
  if (spans.dropped > 0) {
    fmt::print(
        stderr,
        "lockstep: the profile of {} lacks the last {} events, because it holds at most {}: profile fewer steps\n",
        rank_name(options_.rank.rank, options_.rank.node), spans.dropped, kMaxSpans);
  }
  if (!options_.joins) return;
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
}

std::vector<fs::path> Profiler::parts_of_cycle(std::uint64_t cycle) const {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    if (is_part(entry.path()) && entry.path().filename().string().starts_with(prefix_of_cycle(cycle)))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Returns whether it joined anything.
bool Profiler::join_parts(bool wait_for_all) {
  const std::uint64_t before = joined_;
  const fs::path trace = options_.folder / "trace.json";
  while (options_.joins && joined_ < written_) {
    const std::vector<fs::path> files = parts_of_cycle(joined_);
    if (std::cmp_less(files.size(), options_.ranks)) {
      if (wait_for_all) break;
      fmt::print(stderr, "lockstep: {} lacks {} of {} ranks, which wrote no profile\n", trace.string(),
                 static_cast<std::size_t>(options_.ranks) - files.size(), options_.ranks);
    }
    std::vector<std::string> parts;
    if (joined_ > 0) parts.push_back(parts_of(read_text_file(trace), trace.string()));
    for (const fs::path& file : files) parts.push_back(read_text_file(file));
    write_file_atomically(trace, trace_of(parts), kMode);
    for (const fs::path& file : files) fs::remove(file);
    if (++joined_ == 1) {
      fmt::print(
          stderr,
          "lockstep: the profile is in {} (open it with https://ui.perfetto.dev) and operators.txt beside it\n",
          trace.string());
    }
  }
  return joined_ != before;
}

}  // namespace lockstep::profile
