// Serves the step times of this node's ranks from the training program, for users without lockstep-exporter:
//
//   prometheus::Exposer exposer("0.0.0.0:9400");                    // of prometheus-cpp
//   const auto ranks = lockstep::prometheus_collectable(world);
//   exposer.RegisterCollectable(ranks);                             // does not own it
//
// The families are those of lockstep-exporter that come from records. A program that links lockstep::prometheus needs none
// of this: with LOCKSTEP_PROMETHEUS=[ADDRESS:]PORT, World starts an Exposer on the first rank of each node.
#pragma once

#include <prometheus/collectable.h>

#include <memory>

#include "runtime/comm/world.h"

namespace lockstep {

/// The metrics of all ranks of this job step on this node. Without records (LOCKSTEP_METRICS=off) there are none. Not
/// collective: one rank of each node is enough. Collect() may be called from any thread, also after the World has ended,
/// and never throws: prometheus-cpp would end the process.
std::shared_ptr<::prometheus::Collectable> prometheus_collectable(World& world);

}  // namespace lockstep
