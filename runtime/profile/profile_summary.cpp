#include "runtime/profile/profile_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace lockstep::profile {
namespace {

using nlohmann::json;

constexpr std::size_t kOperators = 10;

double to_milliseconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

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

using TimesByName = std::map<std::string_view, OperatorTime>;

std::vector<OperatorTime> largest_first(TimesByName by_name) {
  std::vector<OperatorTime> times;
  for (auto& [name, time] : by_name) {
    time.name = name;
    times.push_back(std::move(time));
  }
  std::stable_sort(times.begin(), times.end(), [](const OperatorTime& left, const OperatorTime& right) {
    return left.self_ns > right.self_ns;
  });
  return times;
}

}  // namespace

std::vector<OperatorTime> operator_times(std::span<const Span> spans) {
  std::vector<const Span*> ordered;
  for (const Span& span : spans) {
    if (span.kind == SpanKind::operation) ordered.push_back(&span);
  }
  // A caller comes before what it calls.
  std::sort(ordered.begin(), ordered.end(), [](const Span* left, const Span* right) {
    return std::tuple(left->thread, left->begin_ns, right->end_ns) <
           std::tuple(right->thread, right->begin_ns, left->end_ns);
  });
  TimesByName by_name;
  std::vector<const Span*> open;  // each was called by the one before
  for (const Span* span : ordered) {
    while (!open.empty() && (open.back()->thread != span->thread || open.back()->end_ns <= span->begin_ns))
      open.pop_back();
    const std::uint64_t duration = span->end_ns - span->begin_ns;
    OperatorTime& time = by_name[span->name];
    time.calls += 1;
    time.self_ns += duration;
    const auto same = [&](const Span* caller) { return caller->name == span->name; };
    if (std::none_of(open.begin(), open.end(), same)) time.total_ns += duration;
    if (!open.empty()) by_name[open.back()->name].self_ns -= duration;
    open.push_back(span);
  }
  return largest_first(std::move(by_name));
}

std::string operator_table(std::span<const OperatorTime> operators) {
  std::uint64_t all = 0;
  for (const OperatorTime& time : operators) all += time.self_ns;
  std::string table =
      fmt::format("{:>9} {:>12} {:>12} {:>7}  {}\n", "calls", "total ms", "self ms", "self %", "operator");
  for (const OperatorTime& time : operators) {
    table += fmt::format("{:>9} {:>12.3f} {:>12.3f} {:>7.1f}  {}\n", time.calls,
                         to_milliseconds(time.total_ns), to_milliseconds(time.self_ns),
                         all == 0 ? 0 : 100.0 * static_cast<double>(time.self_ns) / static_cast<double>(all),
                         time.name);
  }
  return table;
}

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
  TimesByName by_name;
  for (const Span& span : spans) {
    if (span.kind != SpanKind::device) continue;
    OperatorTime& time = by_name[span.name];
    ++time.calls;
    time.total_ns += span.end_ns - span.begin_ns;
    time.self_ns = time.total_ns;
  }
  return largest_first(std::move(by_name));
}

namespace {

json operators(const Spans& spans) {
  json list = json::array();
  for (const OperatorTime& time : operator_times(spans.spans)) {
    if (list.size() == kOperators) break;
    list.push_back({{"name", time.name},
                    {"calls", time.calls},
                    {"total_ms", to_milliseconds(time.total_ns)},
                    {"self_ms", to_milliseconds(time.self_ns)}});
  }
  return list;
}

json modules(const Spans& spans) {
  struct Module {
    std::string_view name;
    std::uint64_t forward_ns = 0;
    std::uint64_t backward_ns = 0;
    std::uint64_t forward_bytes = 0;
    std::uint64_t backward_bytes = 0;
    std::uint64_t ns() const { return forward_ns + backward_ns; }
  };
  std::vector<Module> all(spans.modules.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].name = spans.modules[i];
  for (const Span& span : spans.spans) {
    if (span.module < 0 || static_cast<std::size_t>(span.module) >= all.size()) continue;
    Module& module = all[static_cast<std::size_t>(span.module)];
    const std::uint64_t ns = span.end_ns - span.begin_ns;
    if (span.part == ModelPart::forward) {
      module.forward_ns += ns;
      module.forward_bytes += span.bytes;
    } else if (span.part == ModelPart::node) {
      module.backward_ns += ns;
    } else if (span.part == ModelPart::backward) {
      module.backward_bytes += span.bytes;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Module& a, const Module& b) { return a.ns() > b.ns(); });
  json list = json::array();
  for (const Module& module : all) {
    if (module.ns() == 0) continue;
    list.push_back({{"name", module.name},
                    {"forward_ms", to_milliseconds(module.forward_ns)},
                    {"backward_ms", to_milliseconds(module.backward_ns)},
                    {"forward_bytes", module.forward_bytes},
                    {"backward_bytes", module.backward_bytes}});
  }
  return list;
}

json small_operators(const Spans& spans) {
  std::uint64_t calls = 0;
  std::uint64_t ns = 0;
  std::map<std::string_view, std::uint64_t> names;
  for (const Span& span : spans.spans) {
    const std::uint64_t duration = span.end_ns - span.begin_ns;
    if ((span.part != ModelPart::forward && span.part != ModelPart::backward) || duration >= kSmallOperatorNs)
      continue;
    ++calls;
    ns += duration;
    ++names[span.name];
  }
  const auto most = std::max_element(names.begin(), names.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return {{"calls", calls}, {"ms", to_milliseconds(ns)}, {"name", most == names.end() ? "" : most->first}};
}

json faults(const Spans& spans, OperationFault kind) {
  json list = json::array();
  for (const auto& [what, count] : spans.faults) {
    if (what.first == kind)
      list.push_back({{"name", what.second}, {"calls", count.calls}, {"bytes", count.bytes}});
  }
  return list;
}

json device(const Spans& spans) {
  const DeviceTimes times = device_times(spans.spans);
  json kernels = json::array();
  for (const OperatorTime& time : kernel_times(spans.spans)) {
    if (kernels.size() == kOperators) break;
    kernels.push_back({{"name", time.name}, {"calls", time.calls}, {"ms", to_milliseconds(time.total_ns)}});
  }
  return {{"computing_ms", to_milliseconds(times.computing)},
          {"tensor_cores_ms", to_milliseconds(times.tensor_cores)},
          {"communicating_ms", to_milliseconds(times.communicating)},
          {"copying_ms", to_milliseconds(times.copying)},
          {"busy_ms", to_milliseconds(times.busy)},
          {"kernels", kernels}};
}

}  // namespace

json profile_summary(const Spans& spans, const TraceRank& rank) {
  std::uint64_t steps = 0;
  std::uint64_t step_ns = 0;
  for (const Span& span : spans.spans) {
    if (span.kind != SpanKind::step) continue;
    ++steps;
    step_ns += span.end_ns - span.begin_ns;
  }
  return {{"rank", rank.rank},
          {"node", rank.node},
          {"steps", steps},
          {"step_ms", to_milliseconds(step_ns)},
          {"operators", operators(spans)},
          {"device", device(spans)},
          {"modules", modules(spans)},
          {"small", small_operators(spans)},
          {"host_copies", faults(spans, OperationFault::host_copy)},
          {"device_waits", faults(spans, OperationFault::device_wait)},
          {"tuned_again", faults(spans, OperationFault::tuned_again)},
          {"half_sums", faults(spans, OperationFault::half_sum)}};
}

}  // namespace lockstep::profile
