// The order in which an epoch takes its samples. Shuffling has two levels: shards are dealt into groups, and
// the samples of one group are shuffled together. So an epoch reads lengths and data group after group, needs
// memory for one group, and staging in the background keeps up; yet neighbours in a batch come from all over
// a group. Seeded by seed and epoch, and the same for any number of ranks.
//
// Threads: an EpochOrder belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/planner.h"

namespace lockstep::data {

class EpochOrder {
 public:
  /// A run of this many neighbouring samples counts as a shard.
  static constexpr std::size_t kShardSamples = 4096;
  /// Shards that are shuffled together: a group holds about 262,144 samples.
  static constexpr std::size_t kGroupShards = 64;

  EpochOrder(std::size_t samples, Order order, std::uint64_t seed, std::uint64_t epoch);

  /// Replaces `ids` by the next group's samples, in order. False when the epoch is over.
  bool next_group(std::vector<SampleId>& ids);

 private:
  std::size_t samples_;
  Order order_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::vector<std::size_t> shards_;  // in the epoch's order
  std::size_t next_shard_ = 0;
};

}  // namespace lockstep::data
