// Chunks that have arrived and are stored by other threads than the one that receives. The budget of buffers limits their
// number.
//
// Threads: safe from any.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "staging/transfer/exchange/ring_client.h"

namespace lockstep::transfer {

class Arrivals {
 public:
  void add(ArrivedChunk chunk) {
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) chunks_.push_back(std::move(chunk));
    }
    changed_.notify_one();
  }

  /// Waits for a chunk; nullopt after end().
  std::optional<ArrivedChunk> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !chunks_.empty(); });
    if (ended_) return {};
    std::optional<ArrivedChunk> chunk(std::move(chunks_.front()));
    chunks_.pop_front();
    return chunk;
  }

  /// Drops the chunks that are not stored yet. Their threads end.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      chunks_.clear();
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ArrivedChunk> chunks_;
  bool ended_ = false;
};

}  // namespace lockstep::transfer
