// Makes families of metrics, one at a time, and hands each to a sink when it is complete. The sink decides whether the
// families are kept: a page for 1,000 ranks has 20,000 metrics, which would take 10 MB.
//
// Threads: a value, used by one thread.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::exporter {

using Labels = std::vector<prometheus::ClientMetric::Label>;

/// A copy of the labels with one more.
Labels with(const Labels& labels, std::string_view name, std::string_view value);

class FamilyStream {
 public:
  using Sink = std::function<void(prometheus::MetricFamily&&)>;

  explicit FamilyStream(Sink sink) : sink_(std::move(sink)) {}

  /// Completes the family before, and begins one. A family without metrics is left out. `help` is written as it is: no
  /// backslashes or line breaks.
  void family(std::string_view name, prometheus::MetricType type, std::string_view help);

  /// Adds a metric: a counter if the family is one, else a gauge.
  void add(Labels labels, double value);

  /// Adds a histogram. `cumulative` has one more entry than `bounds`: the count.
  void add(Labels labels, std::span<const double> bounds, std::span<const std::uint64_t> cumulative,
           double sum);

  /// Completes the last family.
  void finish();

 private:
  Sink sink_;
  prometheus::MetricFamily family_;
};

}  // namespace lockstep::exporter
