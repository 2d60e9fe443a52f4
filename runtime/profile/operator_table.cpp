#include "runtime/profile/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

namespace lockstep::profile {

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
  std::map<std::string_view, OperatorTime> by_name;
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

std::string operator_table(std::span<const OperatorTime> operators) {
  std::uint64_t all = 0;
  for (const OperatorTime& time : operators) all += time.self_ns;
  std::string table =
      fmt::format("{:>9} {:>12} {:>12} {:>7}  {}\n", "calls", "total ms", "self ms", "self %", "operator");
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  for (const OperatorTime& time : operators) {
    table += fmt::format("{:>9} {:>12.3f} {:>12.3f} {:>7.1f}  {}\n", time.calls, ms(time.total_ns),
                         ms(time.self_ns), all == 0 ? 0 : 100.0 * ms(time.self_ns) / ms(all), time.name);
  }
  return table;
}

}  // namespace lockstep::profile
