// The metrics of the ranks whose records lie beside one rank's record.
//
// Threads: Collect() is safe from any.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <filesystem>
#include <vector>

namespace lockstep {

class NodeCollectable : public ::prometheus::Collectable {
 public:
  /// `record` is that of a rank of the node; an empty path: no metrics.
  explicit NodeCollectable(std::filesystem::path record) : record_(std::move(record)) {}

  /// Reads the records of the same job step, number of ranks and node. Leaves out what cannot be read.
  std::vector<::prometheus::MetricFamily> Collect() const override;

 private:
  std::filesystem::path record_;
};

}  // namespace lockstep
