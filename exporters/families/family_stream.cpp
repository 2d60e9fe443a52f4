#include "exporters/families/family_stream.h"

#include <limits>
#include <utility>

namespace lockstep::exporter {

Labels with(const Labels& labels, std::string_view name, std::string_view value) {
  Labels more;
  more.reserve(labels.size() + 1);
  more = labels;
  more.push_back({std::string(name), std::string(value)});
  return more;
}

void FamilyStream::family(std::string_view name, prometheus::MetricType type, std::string_view help) {
  finish();
  family_.name = name;
  family_.type = type;
  family_.help = help;
}

void FamilyStream::add(Labels labels, double value) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  if (family_.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

void FamilyStream::add(Labels labels, std::span<const double> bounds,
                       std::span<const std::uint64_t> cumulative, double sum) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  metric.histogram.sample_count = cumulative.back();
  metric.histogram.sample_sum = sum;
  metric.histogram.bucket.reserve(cumulative.size());
  for (std::size_t i = 0; i < cumulative.size(); ++i) {
    metric.histogram.bucket.push_back(
        {.cumulative_count = cumulative[i],
         .upper_bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
  }
}

void FamilyStream::finish() {
  if (!family_.metric.empty()) sink_(std::exchange(family_, {}));
}

}  // namespace lockstep::exporter
