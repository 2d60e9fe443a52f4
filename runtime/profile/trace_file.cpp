#include "runtime/profile/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep::profile {
namespace {

constexpr std::string_view kSeparator = ",\n";
constexpr std::string_view kEnd = "\n]}\n";

// Tracks of a rank; those of threads follow. Zero would be the idle process and thread for Perfetto.
constexpr int kStepTrack = 1;
constexpr int kPhaseTrack = 2;
constexpr int kFirstThread = 10;
constexpr int kFirstStream = 1 << 24;  // above the numbers of threads

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class RankWriter {
 public:
  RankWriter(const TraceRank& rank, const std::map<int, std::string>& thread_names, std::string earlier)
      : rank_(rank), thread_names_(thread_names), text_(std::move(earlier)) {
    if (text_.ends_with(kEnd)) {
      text_.resize(text_.size() - kEnd.size());
      text_ += kSeparator;
    } else {
      text_ = fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"run":"{}","ranks":{}}},"traceEvents":[)",
                          rank.run, rank.ranks) +
              '\n';
    }
    name_process("process_name", quoted(fmt::format("rank {} on {}", rank.rank, rank.node)), "name");
    name_process("process_sort_index", std::to_string(rank.rank), "sort_index");
    name_track(kStepTrack, "steps");
    name_track(kPhaseTrack, "phases");
  }

  void add(const Span& span) {
    switch (span.kind) {
      case SpanKind::step:
        return add_slice(span, "step", kStepTrack);
      case SpanKind::phase:
        return add_slice(span, "phase", kPhaseTrack);
      case SpanKind::operation:
        return add_slice(span, "operator", track_of(span.thread));
      case SpanKind::batch:
        return add_slice(span, "loader", track_of(span.thread));
      case SpanKind::device:
        return add_slice(span, "gpu", track_of_stream(span.thread));
      case SpanKind::collective:
        return add_collective(span);
    }
  }

  void add(const MemorySample& sample) {
    const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    event(R"("name":"resident memory, MiB","ph":"C","ts":{},"args":{{"MiB":{:.2f}}})", time(sample.ns),
          mib(sample.resident_bytes));
    if (sample.device_bytes == 0) return;
    event(R"("name":"allocated GPU memory, MiB","ph":"C","ts":{},"args":{{"MiB":{:.2f}}})", time(sample.ns),
          mib(sample.device_bytes));
  }

  std::string take() {
    text_.resize(text_.size() - kSeparator.size());
    return std::move(text_ += kEnd);
  }

 private:
  int process() const { return rank_.rank + 1; }

  template <typename... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), "{{\"pid\":{},", process());
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '}';
    text_ += kSeparator;
  }

  void name_process(std::string_view event_name, const std::string& value, std::string_view key) {
    event(R"("name":"{}","ph":"M","args":{{"{}":{}}})", event_name, key, value);
  }

  void name_track(int track, const std::string& name) {
    event(R"("tid":{},"name":"thread_name","ph":"M","args":{{"name":{}}})", track, quoted(name));
    event(R"("tid":{0},"name":"thread_sort_index","ph":"M","args":{{"sort_index":{0}}})", track);
  }

  int track_of(int thread) {
    const int track = kFirstThread + thread;
    if (named_.insert(track).second) {
      const auto known = thread_names_.find(thread);
      name_track(track, fmt::format("{} {}", known == thread_names_.end() ? "thread" : known->second,
                                    thread == ::getpid() ? "(main thread)" : std::to_string(thread)));
    }
    return track;
  }

  int track_of_stream(int stream) {
    const int track = kFirstStream + stream;
    if (named_.insert(track).second) name_track(track, fmt::format("GPU stream {}", stream));
    return track;
  }

  // Microseconds on the trace's clock.
  std::string time(std::uint64_t ns) const {
    const std::int64_t aligned = static_cast<std::int64_t>(ns) - rank_.clock_offset_ns;
    return fmt::format("{}.{:03}", aligned / 1000, aligned % 1000);
  }

  void add_slice(const Span& span, std::string_view category, int track) {
    const std::uint64_t ns = span.end_ns - span.begin_ns;
    event(R"("tid":{},"name":{},"cat":"{}","ph":"X","ts":{},"dur":{}.{:03})", track, quoted(span.name),
          category, time(span.begin_ns), ns / 1000, ns % 1000);
  }

  // Operations overlap, so each has its own track (an "async" event). The wait for the last rank is a slice within.
  void add_collective(const Span& span) {
    const std::string id = fmt::format("{}.{}", rank_.rank, collectives_++);
    const auto edge = [&](char phase, const std::string& name, std::uint64_t ns) {
      event(R"("tid":{},"name":{},"cat":"collective","ph":"{}","id":"{}","ts":{})", kStepTrack, name, phase,
            id, time(ns));
    };
    const std::string name = quoted(span.name);
    edge('b', name, span.begin_ns);
    if (span.late_rank >= 0 && span.all_asked_ns > span.begin_ns && span.all_asked_ns < span.end_ns) {
      const std::string wait = fmt::format("\"waits for rank {}\"", span.late_rank);
      edge('b', wait, span.begin_ns);
      edge('e', wait, span.all_asked_ns);
    }
    edge('e', name, span.end_ns);
  }

  const TraceRank& rank_;
  const std::map<int, std::string>& thread_names_;
  std::string text_;
  std::set<int> named_;  // tracks of threads
  std::uint64_t collectives_ = 0;
};

}  // namespace

std::string trace_name(int rank) {
  return fmt::format("trace-{:06}.json", rank);
}

std::string trace_of(const Spans& spans, const TraceRank& rank, std::string earlier) {
  RankWriter writer(rank, spans.thread_names, std::move(earlier));
  for (const Span& span : spans.spans) writer.add(span);
  for (const MemorySample& sample : spans.memory) writer.add(sample);
  return writer.take();
}

}  // namespace lockstep::profile
