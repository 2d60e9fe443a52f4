#include "runtime/profile/device_trace.h"

#ifdef LOCKSTEP_WITH_NCCL
#include <fmt/format.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <torch/csrc/autograd/profiler_kineto.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "common/clock.h"
#include "runtime/profile/accelerator.h"
#include "runtime/profile/device_work.h"
#include "runtime/profile/spans.h"

namespace lockstep::profile {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::optional<std::uint64_t> recording_since;  // monotonic

void begin() {
  // Kineto prints a line for each start and stop. It reads this when it is used first.
  ::setenv("KINETO_LOG_LEVEL", "99", 0);
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CUDA};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

// Kineto's times are those of the system's clock.
std::int64_t unix_minus_monotonic_ns() {
  const auto unix = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(unix).count() -
         static_cast<std::int64_t>(monotonic_ns());
}

void end(std::uint64_t since) {
  const auto result = kineto::disableProfiler();
  const std::int64_t offset = unix_minus_monotonic_ns();
  for (const kineto::KinetoEvent& event : result->events()) {
    if (event.deviceType() == c10::kCPU) continue;  // the calls of CUDA's library
    const auto begin_ns = static_cast<std::uint64_t>(static_cast<std::int64_t>(event.startNs()) - offset);
    if (begin_ns < since) continue;
    Span span{.kind = SpanKind::device,
              .name = event.name(),
              .begin_ns = begin_ns,
              .end_ns = begin_ns + event.durationNs()};
    span.thread = static_cast<int>(event.deviceResourceId());
    span.work = device_work_of(span.name);
    add_span(std::move(span));
  }
}

}  // namespace

bool can_trace_device() {
  return accelerator() == c10::DeviceType::CUDA;
}

void trace_device(bool on) {
  try {
    if (on) {
      if (!recording_since) begin();
      recording_since = monotonic_ns();
    } else if (const auto since = std::exchange(recording_since, std::nullopt)) {
      end(*since);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: the profile has no kernels of the GPU: LibTorch cannot record them: {}\n",
               error.what());
  }
}

}  // namespace lockstep::profile
#else

namespace lockstep::profile {

bool can_trace_device() {
  return false;
}

void trace_device(bool /*on*/) {
}

}  // namespace lockstep::profile
#endif
