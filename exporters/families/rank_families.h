// The families of metrics that records give: names, help, labels and units. A Snapshot becomes series of a
// prometheus::MetricFamily without any form between them, and one family is made at a time: a page for 1,000 ranks has
// 20,000 metrics, which would take 10 MB.
//
// The labels of a rank's series are job_id, step_id, node and rank, and at most `phase` besides. Texts that a user
// chooses appear only in lockstep_job_info. Histograms are classic ones, because Prometheus' text format has no native
// ones. To keep the number of series small, each rank has one histogram, of its steps; the phases' histograms cover all
// ranks of a job step on the node.
//
// Threads: values, each used by one thread; the functions have no shared state.
#pragma once

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exporters/record/record.h"

namespace lockstep::exporter {

/// The ranks of a job step on this node.
struct JobRecords {
  std::string user;         ///< user id; empty if the records folder has no folders of users
  std::string user_name{};  ///< empty if the user has none, or if it is not known yet
  std::string job;
  std::string step;
  std::vector<record::Snapshot> ranks;  ///< by rank, each rank once
};

using Labels = std::vector<prometheus::ClientMetric::Label>;

/// The labels job_id, step_id and node.
Labels labels_of(const std::string& job, const std::string& step, const std::string& node);

/// A copy of the labels with one more.
Labels with(const Labels& labels, std::string_view name, std::string_view value);

/// Makes families one at a time, and hands each to a sink when it is complete. The sink decides whether they are kept.
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

/// Streams the families of the ranks, and of the job steps with ranks, on the node.
void stream_rank_families(const std::vector<JobRecords>& jobs, const std::string& node, FamilyStream& stream);

/// The maximum number of series of one rank: what a dropped record costs.
std::size_t series_per_rank();

}  // namespace lockstep::exporter
