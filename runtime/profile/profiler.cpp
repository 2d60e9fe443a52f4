#include "runtime/profile/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "runtime/profile/profile_summary.h"

namespace lockstep::profile {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0640;  // as the records

}  // namespace

Schedule::State Schedule::state(std::uint64_t step) const {
  const std::uint64_t cycle = wait + warmup + active;
  if (step / cycle >= repeat || step % cycle < wait) return State::off;
  return step % cycle < wait + warmup ? State::warmup : State::active;
}

std::uint64_t Schedule::cycles_ended(std::uint64_t steps) const {
  return std::min(repeat, steps / (wait + warmup + active));
}

Schedule parse_schedule(std::string_view text) {
  Schedule schedule{.active = 0};
  std::array<std::pair<std::string_view, std::uint64_t*>, 4> keys = {{{"wait", &schedule.wait},
                                                                      {"warmup", &schedule.warmup},
                                                                      {"active", &schedule.active},
                                                                      {"repeat", &schedule.repeat}}};
  for (std::string_view left = text; !left.empty();) {
    const std::string_view part = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), part.size() + 1));
    if (part == "stop" && !std::exchange(schedule.stop, true)) continue;
    if (part == "shapes" && !std::exchange(schedule.shapes, true)) continue;
    const std::string_view name = part.substr(0, part.find(':'));
    const std::string_view number = part.substr(std::min(part.size(), name.size() + 1));
    auto* const key = std::find_if(keys.begin(), keys.end(), [&](const auto& k) { return k.first == name; });
    const bool known = key != keys.end() && key->second != nullptr;
    const auto value = to_number<std::uint64_t>(number);
    if (!known || !value) {
      fail_usage(
          "the profile schedule '{}' has the part '{}': write wait:W,warmup:U,active:A,repeat:R,shapes,stop, each once, with whole numbers; only active is required",
          text, part);
    }
    *std::exchange(key->second, nullptr) = *value;
  }
  constexpr std::uint64_t kMax = 1'000'000;
  if (schedule.active == 0 || schedule.repeat == 0) {
    fail_usage("the profile schedule must have active and repeat of at least 1, such as wait:10,active:3");
  }
  if (std::max({schedule.wait, schedule.warmup, schedule.active, schedule.repeat}) > kMax) {
    fail_usage("the numbers of a profile schedule must not exceed {}", kMax);
  }
  return schedule;
}

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
