// Chunks that were stored a moment ago. A successor that keeps up gets them from memory; one that lags gets them from the
// disk.
//
// Threads: safe from any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "staging/transfer/copy/chunk_buffers.h"

namespace lockstep::transfer {

class RecentChunks {
 public:
  /// A chunk of one source, which its address stands for.
  using Key = std::pair<const void*, std::size_t>;

  /// Keeps up to `max` chunks.
  explicit RecentChunks(std::size_t max) : max_(max) {}

  void keep(const Key& key, ChunkBuffers::Buffer data) {
    const std::lock_guard lock(mutex_);
    chunks_.emplace_back(key, std::move(data));
    if (chunks_.size() > max_) chunks_.pop_front();
  }

  /// Copies a chunk; false if it is no longer kept.
  bool read(const Key& key, std::span<std::byte> into) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(chunks_.begin(), chunks_.end(), [&](const auto& chunk) { return chunk.first == key; });
    if (found == chunks_.end() || found->second.bytes().size() != into.size()) return false;
    std::copy(found->second.bytes().begin(), found->second.bytes().end(), into.begin());
    return true;
  }

 private:
  std::size_t max_;
  std::mutex mutex_;
  std::deque<std::pair<Key, ChunkBuffers::Buffer>> chunks_;
};

}  // namespace lockstep::transfer
