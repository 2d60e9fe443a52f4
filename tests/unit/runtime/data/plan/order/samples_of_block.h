// The samples of a block in an epoch's order, computed without the block reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/plan/order/order.h"

namespace lockstep::data {

inline std::vector<SampleId> samples_of_block(const EpochOrder& order, std::size_t block) {
  std::vector<Item> items;
  std::vector<SampleId> ids;
  for (const std::uint32_t shard : order.shards(block)) {
    for (std::size_t i = 0; i < order.samples_of_shard(shard); ++i) {
      items.push_back({static_cast<std::uint32_t>(items.size()), 0});
      ids.push_back(shard * EpochOrder::kShardSamples + i);
    }
  }
  order.shuffle(block, items);
  std::vector<SampleId> ordered;
  for (const Item& item : items) ordered.push_back(ids[item.index]);
  return ordered;
}

}  // namespace lockstep::data
