#include "runtime/data/plan/mixture/dataset_stream.h"

#include <span>

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

// The block that holds position_. Blocks are of one size but for the one with the data's last shard and the
// last one, so they are counted from the epoch's beginning.
void DatasetStream::load() {
  const std::uint64_t epoch = position_ / samples_;
  std::uint64_t before = position_ % samples_;
  if (!order_ || epoch != epoch_) {
    order_.emplace(samples_, order_kind_, seed_, epoch);
    epoch_ = epoch;
    epoch_bits_ = (epoch & 0xffU) << kEpochShift;
  }
  std::size_t block = 0;
  for (;; ++block) {
    std::uint64_t size = 0;
    for (const std::uint32_t shard : order_->shards(block)) size += order_->samples_of_shard(shard);
    if (before < size) break;
    before -= size;
  }
  items_.clear();
  shard_begins_.clear();
  std::vector<std::uint32_t> lengths(EpochOrder::kShardSamples);
  for (const std::uint32_t shard : order_->shards(block)) {
    const std::size_t first = begin_ + shard * EpochOrder::kShardSamples;
    const std::span<std::uint32_t> read = std::span(lengths).first(order_->samples_of_shard(shard));
    source_.read(first, read);
    auto index = static_cast<std::uint32_t>(shard_begins_.size() * EpochOrder::kShardSamples);
    for (const std::uint32_t length : read) items_.push_back({index++, length});
    shard_begins_.push_back(first);
  }
  order_->shuffle(block, items_);
  at_ = before;
}

}  // namespace lockstep::data
