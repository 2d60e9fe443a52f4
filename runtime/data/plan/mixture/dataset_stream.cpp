#include "runtime/data/plan/mixture/dataset_stream.h"

namespace lockstep::data {

DatasetStream::DatasetStream(const LengthSource& source, std::size_t begin, std::size_t samples, Order order,
                             std::uint64_t seed, std::uint64_t position)
    : source_(source),
      begin_(begin),
      samples_(samples),
      order_kind_(order),
      seed_(seed),
      position_(position) {
}

// Loads the block that holds position_. Blocks are not all of the same size (the last one and the one with
// the last shard are smaller), so their sizes are added up from the beginning of the epoch.
void DatasetStream::load() {
  const std::uint64_t epoch = position_ / samples_;
  if (!order_ || epoch != epoch_) {
    order_.emplace(samples_, order_kind_, seed_, epoch);
    epoch_ = epoch;
    epoch_bits_ = (epoch & 0xffU) << kEpochShift;
  }
  place_ = position_ % samples_;
  for (std::size_t block = 0;; ++block) {
    std::uint64_t size = 0;
    for (const std::uint32_t shard : order_->shards(block)) size += order_->samples_of_shard(shard);
    if (place_ < size) {
      block_ = read_block(source_, *order_, block, begin_);
      return order_->shuffle(block, block_.items);
    }
    place_ -= size;
  }
}

}  // namespace lockstep::data
