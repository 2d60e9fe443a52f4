#include "runtime/data/plan/order/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/error.h"
#include "runtime/data/plan/order/random.h"

namespace lockstep::data {
namespace {

// Raise it whenever the same seed and epoch give another order than before.
constexpr int kOrderVersion = 2;

std::size_t shards_in(std::size_t samples) {
  const std::size_t shards = (samples + EpochOrder::kShardSamples - 1) / EpochOrder::kShardSamples;
  if (samples >= kMaxSamples) fail("an epoch can have at most {} samples, not {}", kMaxSamples - 1, samples);
  return shards;
}

}  // namespace

EpochOrder::EpochOrder(std::size_t samples, Order order, std::uint64_t seed, std::uint64_t epoch)
    : samples_(samples), order_(order), seed_(seed), epoch_(epoch), shards_(shards_in(samples)) {
  std::iota(shards_.begin(), shards_.end(), 0U);
  if (order_ == Order::shuffled) Random(seed_, epoch_, 0).shuffle(std::span(shards_));
}

std::span<const std::uint32_t> EpochOrder::shards(std::size_t block) const {
  const std::size_t first = block * kBlockShards;
  return std::span(shards_).subspan(first, std::min(kBlockShards, shards_.size() - first));
}

std::size_t EpochOrder::samples_of_shard(std::uint32_t shard) const {
  return std::min(kShardSamples, samples_ - shard * kShardSamples);
}

void EpochOrder::shuffle(std::size_t block, std::span<Item> items) const {
  if (order_ == Order::shuffled) Random(seed_, epoch_, 1 + block).shuffle(items);
}

std::string EpochOrder::fingerprint() const {
  return order_ == Order::sequential
             ? fmt::format("order-{}-sequential-{}", kOrderVersion, samples_)
             : fmt::format("order-{}-shuffled-{}-{}-{}", kOrderVersion, samples_, seed_, epoch_);
}

BlockSamples read_block(const LengthSource& source, const EpochOrder& order, std::size_t block,
                        std::size_t first_sample) {
  BlockSamples read;
  // Leaves space for samples of earlier blocks: growing the vector would need twice the memory.
  const std::size_t samples = order.shards(block).size() * EpochOrder::kShardSamples;
  read.items.reserve(samples + samples / 16);
  std::vector<std::uint32_t> lengths;
  for (const std::uint32_t shard : order.shards(block)) {
    const std::size_t begin = first_sample + shard * EpochOrder::kShardSamples;
    lengths.resize(order.samples_of_shard(shard));
    source.read(begin, lengths);
    auto index = static_cast<std::uint32_t>(read.shard_begins.size() * EpochOrder::kShardSamples);
    read.shard_begins.push_back(begin);
    for (const std::uint32_t length : lengths) read.items.push_back({index++, length});
  }
  return read;
}

BlockSamples read_block_for_plan(const LengthSource& source, const EpochOrder& order, std::size_t block,
                                 const PlanOptions& options) {
  BlockSamples read = read_block(source, order, block);
  const auto cap = static_cast<std::uint32_t>(options.cap);
  std::vector<Item> pieces;
  for (Item& item : read.items) {
    const std::uint32_t length = item.length;
    if (length <= cap) continue;  // an empty sample is not planned
    const SampleId id = read.id_of(item.index);
    check_sample(fmt::format("sample {}", id), length, options);
    // A skipped sample stays in the list so that the order does not depend on the cap.
    item.length = options.too_long == TooLong::skip ? 0 : cap;
    if (options.too_long != TooLong::split) continue;
    for (std::uint64_t piece = 1; piece * cap < length; ++piece) {
      pieces.push_back({static_cast<std::uint32_t>(BlockSamples::kFirstPiece + read.pieces.size()),
                        std::min(cap, length - static_cast<std::uint32_t>(piece * cap))});
      read.pieces.push_back(id | piece << kPieceShift);
    }
  }
  read.items.insert(read.items.end(), pieces.begin(), pieces.end());
  order.shuffle(block, read.items);
  return read;
}

}  // namespace lockstep::data
