// Runs the same work on items 0 to n - 1, several at a time.
//
// Threads: the call starts its own threads and has joined them when it returns.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/thread.h"

namespace lockstep::transfer {

inline constexpr int kManyAtOnce = 32;  ///< a network file system answers many questions in the time of one

/// Calls work(i) for every i below `count`, on `threads` threads. After the first exception no more items are begun, and it is
/// thrown again here. If a thread cannot be started (a limit on processes), `cannot_start` is called, which must end items that
/// wait for others; then that error is thrown.
inline void parallel_for(
    std::size_t count, int threads, const std::function<void(std::size_t i)>& work,
    const std::function<void()>& cannot_start = [] {}) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::exception_ptr error;
  const auto note_error = [&] {
    const std::lock_guard lock(mutex);
    if (!error) error = std::current_exception();
    failed = true;
  };
  {
    std::vector<std::jthread> workers;
    const std::size_t wanted = std::min<std::size_t>(count, static_cast<std::size_t>(std::max(1, threads)));
    try {
      for (std::size_t t = 0; t < wanted; ++t) {
        workers.push_back(new_thread<std::jthread>([&] {
          for (std::size_t i = next++; i < count && !failed; i = next++) {
            try {
              work(i);
            } catch (...) {
              note_error();
            }
          }
        }));
      }
    } catch (...) {
      note_error();
      cannot_start();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::transfer
