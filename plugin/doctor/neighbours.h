// Checks between the nodes of a step: each node connects to the next one, and to the first one, whose clock and
// versions are the reference. Answers are not trusted: a node takes two numbers and a few short texts from each.
//
// Threads: main's thread; answers the other nodes in another one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "plugin/doctor/finding.h"
#include "plugin/spank/options/config.h"

namespace lockstep::doctor {

/// The nodes of this step of srun.
struct StepNodes {
  std::vector<std::string> names;
  std::size_t self = 0;   ///< index of this node
  unsigned long key = 0;  ///< the step's number among all steps
};

/// nullopt outside of a step of srun on several nodes.
std::optional<StepNodes> nodes_of_step();

/// "peer_network": this node has an address in that network of lockstep.conf.
void check_peer_network(const spank::Config& config, Report& report);

/// "ports": this node reaches the next one and the first one at ports of lockstep.conf, and they reach this node.
/// "clocks" and "versions": its clock and the versions in `report` agree with the first node's. Takes up to 15 seconds
/// if a node does not answer.
void check_neighbours(const StepNodes& nodes, const spank::Config& config, Report& report);

}  // namespace lockstep::doctor
