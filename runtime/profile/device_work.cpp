#include "runtime/profile/device_work.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <utility>

namespace lockstep::profile {
namespace {

// The shapes of instructions (m16n8k16 as "16816"), Hopper's and Blackwell's own families, and libraries whose kernels
// always use tensor cores.
constexpr std::array<std::string_view, 14> kTensorCores = {
    "tensorop", "hmma",      "imma",      "wgmma",     "h884",      "s884",  "1688",
    "16816",    "xmma_gemm", "flash_fwd", "flash_bwd", "cudnn_sdp", "nvjet", "tcgen05"};

std::uint64_t length_of_union(std::vector<std::pair<std::uint64_t, std::uint64_t>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::uint64_t length = 0;
  std::uint64_t end = 0;
  for (const auto& [from, to] : intervals) {
    const std::uint64_t begin = std::max(from, end);
    if (to <= begin) continue;
    length += to - begin;
    end = to;
  }
  return length;
}

}  // namespace

DeviceWork device_work_of(std::string_view name) {
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return DeviceWork::copy;
  if (name.starts_with("nccl")) return DeviceWork::communication;
  const bool tensor_cores = std::any_of(kTensorCores.begin(), kTensorCores.end(), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
  return tensor_cores ? DeviceWork::tensor_kernel : DeviceWork::kernel;
}

DeviceTimes device_times(std::span<const Span> spans) {
  std::uint64_t from = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t to = 0;
  for (const Span& span : spans) {
    if (span.kind != SpanKind::step) continue;
    from = std::min(from, span.begin_ns);
    to = std::max(to, span.end_ns);
  }
  const auto time_of = [&](const std::function<bool(DeviceWork)>& counts) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> intervals;
    for (const Span& span : spans) {
      if (span.kind == SpanKind::device && counts(span.work))
        intervals.emplace_back(std::max(span.begin_ns, from), std::min(span.end_ns, to));
    }
    return length_of_union(std::move(intervals));
  };
  using enum DeviceWork;
  return {.computing = time_of([](DeviceWork work) { return work == kernel || work == tensor_kernel; }),
          .tensor_cores = time_of([](DeviceWork work) { return work == tensor_kernel; }),
          .communicating = time_of([](DeviceWork work) { return work == communication; }),
          .copying = time_of([](DeviceWork work) { return work == copy; }),
          .busy = time_of([](DeviceWork) { return true; })};
}

std::vector<OperatorTime> kernel_times(std::span<const Span> spans) {
  std::map<std::string_view, OperatorTime> by_name;
  for (const Span& span : spans) {
    if (span.kind != SpanKind::device) continue;
    OperatorTime& time = by_name[span.name];
    ++time.calls;
    time.total_ns += span.end_ns - span.begin_ns;
  }
  std::vector<OperatorTime> times;
  for (auto& [name, time] : by_name) {
    time.name = name;
    time.self_ns = time.total_ns;
    times.push_back(std::move(time));
  }
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& left, const auto& right) { return left.self_ns > right.self_ns; });
  return times;
}

}  // namespace lockstep::profile
