// One data set of a mixture, taken epoch after epoch without an end, each in its own order, from any point.
// Holds one block of it.
//
// Threads: a DatasetStream belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/data/plan/order/length_source.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class DatasetStream {
 public:
  /// The source's `samples` samples from `begin` on. `position`: how many were taken in all epochs so far.
  /// `source` must outlive the stream.
  DatasetStream(const LengthSource& source, std::size_t begin, std::size_t samples, Order order,
                std::uint64_t seed, std::uint64_t position);

  struct Sample {
    SampleId id;  ///< with its epoch
    std::uint32_t length;
  };
  Sample next() {
    if (at_ == items_.size()) load();
    const Item item = items_[at_++];
    ++position_;
    return {id_of(item.index), item.length};
  }

  std::uint64_t position() const { return position_; }

 private:
  void load();
  SampleId id_of(std::uint32_t index) const {
    return epoch_bits_ |
           (shard_begins_[index / EpochOrder::kShardSamples] + index % EpochOrder::kShardSamples);
  }

  const LengthSource& source_;
  std::size_t begin_;
  std::size_t samples_;
  Order order_kind_;
  std::uint64_t seed_;
  std::uint64_t position_;
  std::optional<EpochOrder> order_;
  std::uint64_t epoch_ = 0;
  SampleId epoch_bits_ = 0;
  std::vector<SampleId> shard_begins_;
  std::vector<Item> items_;
  std::size_t at_ = 0;
};

}  // namespace lockstep::data
