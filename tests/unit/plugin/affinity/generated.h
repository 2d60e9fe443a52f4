// Random machines for the properties of plans, made by hwloc: packages, NUMA nodes, caches, hardware threads in both usual
// numberings, cores of two kinds, offline CPUs, nodes without memory, and nodes with memory alone.
#pragma once

#include <hwloc.h>

#include <random>
#include <string>
#include <vector>

#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

class GeneratedMachine {
 public:
  explicit GeneratedMachine(std::mt19937& random);
  ~GeneratedMachine() { hwloc_topology_destroy(topology_); }
  GeneratedMachine(const GeneratedMachine&) = delete;
  GeneratedMachine& operator=(const GeneratedMachine&) = delete;

  Machine whole() const;
  /// The same machine in a cgroup with these CPUs.
  Machine granted(const std::vector<int>& cpus) const;
  /// A machine that has these CPUs only.
  Machine smaller(const std::vector<int>& cpus) const;

  std::string description;
  std::vector<int> known;         ///< all CPUs, ascending
  std::vector<int> online;        ///< at least one, ascending
  std::vector<int> nodes;         ///< all NUMA nodes, ascending
  std::vector<int> memory_nodes;  ///< those with memory, ascending

 private:
  hwloc_topology_t topology_ = nullptr;
};

/// Some of the items, at least one, in the same order.
std::vector<int> some_of(std::mt19937& random, const std::vector<int>& items, double probability);

}  // namespace lockstep::affinity
