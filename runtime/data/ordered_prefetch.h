// Builds things 0, 1, 2, ... ahead of use with a few threads and hands them out in order. Bounded: no more
// than `ahead` are being built or waiting. What building throws is thrown where the thing would have come.
//
// Threads: one thread calls next(); `build` runs on the worker threads, several calls at a time.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/cpu_list.h"

namespace lockstep::data {

struct PrefetchOptions {
  int threads = 1;
  std::size_t ahead = 1;
  std::vector<int> cpus;  ///< that the threads may run on; empty: those of the thread that makes them
};

template <typename T>
class OrderedPrefetch {
 public:
  OrderedPrefetch(std::size_t count, const PrefetchOptions& options, std::function<T(std::size_t)> build)
      : count_(count), build_(std::move(build)), slots_(options.ahead) {
    try {
      for (int i = 0; i < options.threads; ++i) {
        threads_.emplace_back([this, cpus = options.cpus] { work(cpus); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  /// Waits for what is being built, and no more.
  ~OrderedPrefetch() { stop(); }
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;

  /// The next thing; nothing after the last. Throws what building it threw, and again when called again.
  std::optional<T> next() {
    if (taken_ == count_) return std::nullopt;
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[taken_ % slots_.size()];
    ready_.wait(lock, [&] { return slot.thing.has_value() || slot.failure; });
    if (slot.failure) std::rethrow_exception(slot.failure);
    std::optional<T> thing = std::exchange(slot.thing, std::nullopt);
    ++taken_;
    lock.unlock();
    room_.notify_one();
    return thing;
  }

 private:
  struct Slot {
    std::optional<T> thing;
    std::exception_ptr failure;
  };

  void work(const std::vector<int>& cpus) {
    pthread_setname_np(pthread_self(), "lockstep-data");
    std::exception_ptr cannot_bind;
    try {
      if (!cpus.empty()) bind_this_thread(cpus);
    } catch (...) {
      cannot_bind = std::current_exception();
    }
    for (;;) {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] { return stopping_ || claimed_ == count_ || claimed_ < taken_ + slots_.size(); });
      if (stopping_ || claimed_ == count_) return;
      const std::size_t index = claimed_++;
      lock.unlock();
      Slot built;
      try {
        if (cannot_bind) std::rethrow_exception(cannot_bind);
        built.thing.emplace(build_(index));
      } catch (...) {
        built.failure = std::current_exception();
      }
      lock.lock();
      slots_[index % slots_.size()] = std::move(built);
      lock.unlock();
      ready_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const std::size_t count_;
  const std::function<T(std::size_t)> build_;
  std::mutex mutex_;
  std::condition_variable ready_;  // for next()
  std::condition_variable room_;   // for the workers
  std::vector<Slot> slots_;        // thing i is in slot i modulo their number
  std::size_t claimed_ = 0;
  std::size_t taken_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
