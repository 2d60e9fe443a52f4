// Chunks that were stored a moment ago. A successor that keeps up gets them from memory, without a copy; one that lags gets
// them from the disk.
//
// Threads: safe from any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

#include "staging/transfer/copy/chunk_buffers.h"

namespace lockstep::transfer {

class RecentChunks {
 public:
  /// A chunk of one source, which its address stands for.
  using Key = std::pair<const void*, std::size_t>;

  /// Keeps up to `max` chunks, lent ones included.
  explicit RecentChunks(std::size_t max) : max_(max) {}

  void keep(const Key& key, LentChunk chunk) {
    const std::lock_guard lock(mutex_);
    chunks_.emplace_back(key, std::move(chunk));
    if (chunks_.size() <= max_) return;
    // The oldest that nobody sends; the new one, if a successor holds up all others.
    const auto unused = std::find_if(chunks_.begin(), chunks_.end(),
                                     [](const auto& each) { return each.second.use_count() == 1; });
    chunks_.erase(unused == chunks_.end() ? std::prev(unused) : unused);
  }

  /// Null if the chunk is no longer kept.
  LentChunk lend(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(chunks_.begin(), chunks_.end(), [&](const auto& each) { return each.first == key; });
    return found == chunks_.end() ? nullptr : found->second;
  }

 private:
  std::size_t max_;
  std::mutex mutex_;
  std::deque<std::pair<Key, LentChunk>> chunks_;
};

}  // namespace lockstep::transfer
