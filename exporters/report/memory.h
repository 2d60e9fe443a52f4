// The memory that ranks use, against the limit of their cgroup or their node.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

/// The ranks of a node that share a limit.
struct MemoryUse {
  std::string node{};
  std::vector<int> ranks{};
  std::uint64_t peak = 0;  ///< sum of the ranks' peaks, without files; memory that they share counts once
  std::uint64_t limit = 0;
  std::uint64_t buffers = 0;  ///< the maximum of the loaders' batches
  bool of_group = false;      ///< the limit is a cgroup's, not the node's
  bool died = false;          ///< one of them ended without finishing
  double share() const { return static_cast<double>(peak) / static_cast<double>(limit); }
};

/// The largest share first. Ranks without a sample, or without a limit, are left out.
std::vector<MemoryUse> memory_use(const Run& run);

/// "the 2 ranks on n1 use up to 3.1 GiB of the 10 GiB of the job's cgroup (31 %)".
std::string to_text(const MemoryUse& use);

/// Whether memory ended a rank, or is about to: the peak is at least this share of the limit.
inline constexpr double kMemoryFull = 0.90;
inline constexpr double kMemoryFullOfDead = 0.80;  // the last sample may be a second old
bool is_full(const MemoryUse& use);

}  // namespace lockstep::report
