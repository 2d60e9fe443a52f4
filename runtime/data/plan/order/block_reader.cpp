#include "runtime/data/plan/order/block_reader.h"

#include <algorithm>
#include <utility>

#include "common/error.h"

namespace lockstep::data {

BlockSamples BlockReader::read(std::size_t block) {
  read_ = {};
  pieces_.clear();
  // With room for what is left of earlier blocks: growing would take the memory twice.
  const std::size_t samples = order_.shards(block).size() * EpochOrder::kShardSamples;
  read_.items.reserve(samples + samples / 16);
  for (const std::uint32_t shard : order_.shards(block)) read_shard(shard);
  read_.items.insert(read_.items.end(), pieces_.begin(), pieces_.end());
  order_.shuffle(block, read_.items);
  return std::move(read_);
}

void BlockReader::read_shard(std::uint32_t shard) {
  const std::size_t first = shard * EpochOrder::kShardSamples;
  lengths_.resize(order_.samples_of_shard(shard));
  source_.read(first, lengths_);
  const auto index = static_cast<std::uint32_t>(read_.shard_begins.size() * EpochOrder::kShardSamples);
  read_.shard_begins.push_back(first);
  const auto [shortest, longest] = std::minmax_element(lengths_.begin(), lengths_.end());
  if (*shortest > 0 && *longest <= cap_) {
    for (std::uint32_t i = 0; i < lengths_.size(); ++i) read_.items.push_back({index + i, lengths_[i]});
  } else {
    for (std::uint32_t i = 0; i < lengths_.size(); ++i) add(first + i, index + i, lengths_[i]);
  }
}

// A sample that may not be as the planner wants it.
void BlockReader::add(SampleId id, std::uint32_t index, std::uint32_t length) {
  if (length == 0) fail("sample {} is empty: remove it from the data", id);
  if (length <= cap_) return read_.items.push_back({index, length});
  if (too_long_ == TooLong::refuse) {
    fail(
        "sample {} has {} tokens, over the cap of {} per micro-batch: raise the cap, shorten the sample, or "
        "choose to truncate, skip or split such samples (too_long)",
        id, length, cap_);
  }
  if (too_long_ == TooLong::split && (length - 1) / cap_ >= kMaxPieces) {
    fail("sample {} has {} tokens, more than {} pieces of the cap of {}: raise the cap", id, length,
         kMaxPieces, cap_);
  }
  if (read_.over_long.samples++ == 0) read_.over_long.first = id;
  if (too_long_ == TooLong::skip) {
    read_.over_long.tokens += length;
    // Kept, so that a sample's place in the order does not depend on the cap.
    return read_.items.push_back({index, 0});
  }
  read_.items.push_back({index, cap_});
  if (too_long_ == TooLong::truncate) {
    read_.over_long.tokens += length - cap_;
    return;
  }
  for (std::uint64_t piece = 1; piece * cap_ < length; ++piece) {
    pieces_.push_back({static_cast<std::uint32_t>(BlockSamples::kFirstPiece + read_.pieces.size()),
                       std::min(cap_, length - static_cast<std::uint32_t>(piece * cap_))});
    read_.pieces.push_back(id | piece << kPieceShift);
  }
}

}  // namespace lockstep::data
