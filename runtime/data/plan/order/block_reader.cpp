#include "runtime/data/plan/order/block_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::data {

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
