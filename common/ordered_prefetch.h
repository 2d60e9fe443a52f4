// A queue that builds items ahead of use on a few threads and returns them in the order of their claims. At most
// `ahead` items are being built or waiting. If claiming or building an item throws, next() throws that exception in the
// item's place. The threads live as long as the queue, so there is no pause between two epochs of a
// loader.
//
// Threads: one thread calls the members. `claim` runs on the worker threads, one
// call at a time; `build` runs on them too, several calls at a time.
#pragma once

#include <cxxabi.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/leaf/cpu_list.h"

namespace lockstep {

struct PrefetchOptions {
  int threads = 1;
  std::size_t ahead = 1;
  std::vector<int> cpus;  ///< CPUs of the threads; empty: those of the constructing thread
};

/// Where the code of the calling thread ended the thread, such as ": sample 'a'". It is set while the
/// thread's stack is unwound, because no exception can carry it then.
inline std::string& place_of_thread_end() {
  thread_local std::string place;
  return place;
}

template <typename Claim, typename T>
class OrderedPrefetch {
 public:
  /// `claim` returns the next item to build, or nullopt at the end (until restart()). `build` builds it on
  /// worker 0, 1, …
  OrderedPrefetch(const PrefetchOptions& options, std::function<std::optional<Claim>()> claim,
                  std::function<T(const Claim&, int)> build)
      : claim_(std::move(claim)), build_(std::move(build)), slots_(options.ahead) {
    try {
      for (int i = 0; i < options.threads; ++i) add_thread(options.cpus);
    } catch (...) {
      stop();
      throw;
    }
  }
  /// Waits for the items that are being built.
  ~OrderedPrefetch() { stop(); }
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;

  /// Waits for the next item and returns it; nullopt after the end. Throws the exception of claiming or
  /// building it, again at every call until restart(). Once *stop is true, it returns nullopt without the item.
  std::optional<T> next(const std::atomic<bool>* stop = nullptr) {
    std::unique_lock lock(mutex_);
    if (stop == nullptr) {
      ready_.wait(lock, [&] { return is_ready(); });
    } else {
      while (!is_ready() && !stop->load()) ready_.wait_for(lock, std::chrono::milliseconds(100));
      if (stop->load()) return std::nullopt;
    }
    return take(lock);
  }

  /// The same without waiting. Sets `ready` to whether the item, or the end, was ready.
  std::optional<T> next_if_ready(bool& ready) {
    std::unique_lock lock(mutex_);
    ready = is_ready();
    if (!ready) return std::nullopt;
    return take(lock);
  }

  /// Whether next() would return at once.
  bool ready() {
    const std::lock_guard lock(mutex_);
    return is_ready();
  }

  int threads() const { return static_cast<int>(threads_.size()); }
  /// Starts one more, on these CPUs; empty: those of the calling thread.
  void add_thread(const std::vector<int>& cpus = {}) {
    try {
      threads_.emplace_back([this, worker = threads(), cpus] { work(worker, cpus); });
    } catch (const std::system_error& error) {
      fail("cannot start worker thread {}: {}", threads() + 1, error.what());
    }
  }

  /// Discards the items built or claimed, calls `change`, which may change what `claim` returns, and begins
  /// again.
  void restart(const std::function<void()>& change) {
    const std::lock_guard claiming(claiming_);
    {
      const std::lock_guard lock(mutex_);
      ++generation_;
      for (Slot& slot : slots_) slot = {};
      claimed_ = taken_ = 0;
      ended_ = false;
    }
    change();
    slot_free_.notify_all();
  }

 private:
  struct Slot {
    std::optional<T> item;
    std::exception_ptr failure;
    bool end = false;
  };

  bool is_ready() const {
    const Slot& slot = slots_[taken_ % slots_.size()];
    return slot.item.has_value() || slot.failure || slot.end || thread_ended_;
  }

  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    Slot& slot = slots_[taken_ % slots_.size()];
    if (slot.failure) std::rethrow_exception(slot.failure);
    if (slot.end) return std::nullopt;
    if (!slot.item) std::rethrow_exception(thread_ended_);
    std::optional<T> item = std::exchange(slot.item, std::nullopt);
    ++taken_;
    lock.unlock();
    slot_free_.notify_one();
    return item;
  }

  // Waits for a free slot. Returns false if the threads must end.
  bool wait_for_slot(std::unique_lock<std::mutex>& lock) {
    slot_free_.wait(lock, [&] { return stopping_ || (!ended_ && claimed_ < taken_ + slots_.size()); });
    return !stopping_;
  }

  void work(int worker, const std::vector<int>& cpus) {
    pthread_setname_np(pthread_self(), "lockstep-data");
    std::exception_ptr cannot_bind;
    try {
      if (!cpus.empty()) bind_this_thread(cpus);
    } catch (...) {
      cannot_bind = std::current_exception();
    }
    for (;;) {
      // Only one thread at a time takes a slot and claims its item, so that claims are in order.
      std::unique_lock claiming(claiming_);
      std::unique_lock lock(mutex_);
      if (stopping_) return;
      if (ended_ || claimed_ >= taken_ + slots_.size()) {
        claiming.unlock();
        if (!wait_for_slot(lock)) return;
        continue;
      }
      const std::size_t place = claimed_;
      const std::uint64_t generation = generation_;
      lock.unlock();

      Slot built;
      std::optional<Claim> claim;
      try {
        if (cannot_bind) std::rethrow_exception(cannot_bind);
        claim = claim_();
        built.end = !claim.has_value();
      } catch (...) {
        built.failure = std::current_exception();
      }
      lock.lock();
      claimed_ = place + 1;
      ended_ = !claim.has_value();
      lock.unlock();
      claiming.unlock();

      if (claim) {
        slot_free_.notify_one();  // another thread may claim the one after
        try {
          built.item.emplace(build_(*claim, worker));
        } catch (abi::__forced_unwind&) {
          // User code ends the thread (pthread_exit): report it, because next() would wait forever.
          built.failure = std::make_exception_ptr(Error(
              fmt::format("a loader's worker thread was ended by the code in it{}", place_of_thread_end())));
          put(place, generation, std::move(built), true);
          throw;
        } catch (...) {
          built.failure = std::current_exception();
        }
      }
      put(place, generation, std::move(built));
    }
  }

  void put(std::size_t place, std::uint64_t generation, Slot built, bool ends_thread = false) {
    {
      const std::lock_guard lock(mutex_);
      if (ends_thread) thread_ended_ = built.failure;
      if (generation == generation_) slots_[place % slots_.size()] = std::move(built);
    }
    ready_.notify_one();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    slot_free_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const std::function<std::optional<Claim>()> claim_;
  const std::function<T(const Claim&, int)> build_;
  std::mutex claiming_;  // taken before mutex_
  std::mutex mutex_;
  std::condition_variable ready_;      // for next()
  std::condition_variable slot_free_;  // for the workers
  std::vector<Slot> slots_;            // item i is in slot i modulo their number
  std::uint64_t generation_ = 0;
  std::size_t claimed_ = 0;
  std::size_t taken_ = 0;
  bool ended_ = false;
  std::exception_ptr thread_ended_;  // set if a thread ended: the items that it should build are missing
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
