#include "runtime/profile/profile_summary.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "runtime/profile/device_work.h"
#include "runtime/profile/operator_table.h"

namespace lockstep::profile {
namespace {

using nlohmann::json;

constexpr std::size_t kOperators = 10;

double to_milliseconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

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
