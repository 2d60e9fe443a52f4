#include "runtime/data/plan/block_reader.h"

#include <algorithm>
#include <utility>

#include "common/error.h"

namespace lockstep::data {

void refuse_over_long(SampleId id, std::uint32_t length, std::uint64_t cap) {
  fail(
      "sample {} has {} tokens, over the cap of {} per micro-batch: raise the cap, shorten the sample, or "
      "say what is to become of such samples",
      id, length, cap);
}

void BlockReader::begin(std::size_t block) {
  block_ = block;
  read_ = {.items = std::move(spare_), .shard_begins = {}, .pieces = {}, .over_long = {}};
  read_.items.clear();
  // With room for what is carried in: growing would take the memory twice.
  const std::size_t own = order_.shards(block).size() * EpochOrder::kShardSamples;
  read_.items.reserve(own + own / 16);
  pieces_.clear();
  done_ = false;
  error_ = nullptr;
}

bool BlockReader::go_on() {
  if (!block_ || done_) return false;
  try {
    if (read_.shard_begins.size() < order_.shards(*block_).size()) {
      read_shard();
    } else {
      read_.items.insert(read_.items.end(), pieces_.begin(), pieces_.end());
      order_.shuffle(*block_, read_.items);
      done_ = true;
    }
  } catch (...) {
    error_ = std::current_exception();
    done_ = true;
  }
  return true;
}

BlockSamples BlockReader::take(std::size_t block) {
  if (block_ != block) begin(block);
  while (go_on()) {
  }
  block_.reset();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::move(read_);
}

void BlockReader::read_shard() {
  const std::size_t slot = read_.shard_begins.size();
  const std::uint32_t shard = order_.shards(*block_)[slot];
  const std::size_t first = shard * EpochOrder::kShardSamples;
  lengths_.resize(order_.samples_of_shard(shard));
  source_.read(first, lengths_);
  read_.shard_begins.push_back(first);
  const auto index = static_cast<std::uint32_t>(slot * EpochOrder::kShardSamples);
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
  if (too_long_ == TooLong::refuse) refuse_over_long(id, length, cap_);
  if (too_long_ == TooLong::split && (length - 1) / cap_ >= kMostPieces) {
    fail("sample {} has {} tokens, more than {} pieces of the cap of {}: raise the cap", id, length,
         kMostPieces, cap_);
  }
  if (read_.over_long.samples++ == 0) read_.over_long.first = id;
  if (too_long_ == TooLong::skip) {
    read_.over_long.tokens += length;
    return;
  }
  read_.items.push_back({index, cap_});
  if (too_long_ == TooLong::truncate) {
    read_.over_long.tokens += length - cap_;
    return;
  }
  for (std::uint64_t piece = 1; piece * cap_ < length; ++piece) {
    pieces_.push_back({static_cast<std::uint32_t>(BlockSamples::kPieces + read_.pieces.size()),
                       std::min(cap_, length - static_cast<std::uint32_t>(piece * cap_))});
    read_.pieces.push_back(id | piece << kPieceShift);
  }
}

}  // namespace lockstep::data
