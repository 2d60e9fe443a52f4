// Builds things ahead of use with a few threads and hands them out in the order in which they were claimed.
// Bounded: no more than `ahead` are being built or waiting. What claiming or building throws is thrown where
// the thing would have come. The threads live as long as the queue, so nothing stalls where one epoch ends
// and the next begins.
//
// Threads: one thread calls next(), next_if_ready() and restart(). `claim` runs on the worker threads, one
// call at a time; `build` runs on them too, several calls at a time.
#pragma once

#include <cxxabi.h>
#include <pthread.h>

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

#include "common/cpu_list.h"
#include "common/error.h"

namespace lockstep::data {

struct PrefetchOptions {
  int threads = 1;
  std::size_t ahead = 1;
  std::vector<int> cpus;  ///< that the threads may run on; empty: those of the thread that makes them
};

/// What the calling thread was at when the code that it ran ended it, such as ": sample 'a'". Whoever knows
/// sets it while the thread's stack is unwound, which no exception can carry anything through.
inline std::string& ended_at() {
  thread_local std::string at;
  return at;
}

template <typename Claim, typename T>
class OrderedPrefetch {
 public:
  /// `claim` says what comes next, or nothing: the end, until restart(). `build` makes it, on worker 0, 1, …
  OrderedPrefetch(const PrefetchOptions& options, std::function<std::optional<Claim>()> claim,
                  std::function<T(const Claim&, int)> build)
      : claim_(std::move(claim)), build_(std::move(build)), slots_(options.ahead) {
    try {
      start(options);
    } catch (...) {
      stop();
      throw;
    }
  }
  /// Waits for what is being built, and no more.
  ~OrderedPrefetch() { stop(); }
  OrderedPrefetch(const OrderedPrefetch&) = delete;
  OrderedPrefetch& operator=(const OrderedPrefetch&) = delete;

  /// The next thing; nothing after the end. Throws what claiming or building it threw, and again when called
  /// again.
  std::optional<T> next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return is_ready(); });
    return take(lock);
  }

  /// The same if that needs no waiting: `ready` says whether it was so.
  std::optional<T> next_if_ready(bool& ready) {
    std::unique_lock lock(mutex_);
    ready = is_ready();
    if (!ready) return std::nullopt;
    return take(lock);
  }

  /// Throws away what was built or claimed, lets `change` set what the next claims will be, and begins anew.
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
    room_.notify_all();
  }

 private:
  struct Slot {
    std::optional<T> thing;
    std::exception_ptr failure;
    bool end = false;
  };

  void start(const PrefetchOptions& options) {
    for (int i = 0; i < options.threads; ++i) {
      try {
        threads_.emplace_back([this, i, cpus = options.cpus] { work(i, cpus); });
      } catch (const std::system_error& error) {
        fail("cannot start worker thread {} of {}: {}", i + 1, options.threads, error.what());
      }
    }
  }

  bool is_ready() const {
    const Slot& slot = slots_[taken_ % slots_.size()];
    return slot.thing.has_value() || slot.failure || slot.end || died_;
  }

  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    Slot& slot = slots_[taken_ % slots_.size()];
    if (slot.failure) std::rethrow_exception(slot.failure);
    if (slot.end) return std::nullopt;
    if (!slot.thing) std::rethrow_exception(died_);
    std::optional<T> thing = std::exchange(slot.thing, std::nullopt);
    ++taken_;
    lock.unlock();
    room_.notify_one();
    return thing;
  }

  // Waits for room. False when the threads must end.
  bool wait_for_room(std::unique_lock<std::mutex>& lock) {
    room_.wait(lock, [&] { return stopping_ || (!ended_ && claimed_ < taken_ + slots_.size()); });
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
      // One thread at a time goes from waiting for room to having claimed, so that claims are in order.
      std::unique_lock claiming(claiming_);
      std::unique_lock lock(mutex_);
      if (stopping_) return;
      if (ended_ || claimed_ >= taken_ + slots_.size()) {
        claiming.unlock();
        if (!wait_for_room(lock)) return;
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
        room_.notify_one();  // another thread may claim the one after
        try {
          built.thing.emplace(build_(*claim, worker));
        } catch (abi::__forced_unwind&) {
          // The thread is being ended from outside (pthread_exit in user code): say so, do not hang.
          built.failure = std::make_exception_ptr(
              Error(fmt::format("a loader's worker thread was ended by the code in it{}", ended_at())));
          put(place, generation, std::move(built), true);
          throw;
        } catch (...) {
          built.failure = std::current_exception();
        }
      }
      put(place, generation, std::move(built));
    }
  }

  void put(std::size_t place, std::uint64_t generation, Slot built, bool died = false) {
    {
      const std::lock_guard lock(mutex_);
      if (died) died_ = built.failure;
      if (generation == generation_) slots_[place % slots_.size()] = std::move(built);
    }
    ready_.notify_one();
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

  const std::function<std::optional<Claim>()> claim_;
  const std::function<T(const Claim&, int)> build_;
  std::mutex claiming_;  // taken before mutex_
  std::mutex mutex_;
  std::condition_variable ready_;  // for next()
  std::condition_variable room_;   // for the workers
  std::vector<Slot> slots_;        // thing i is in slot i modulo their number
  std::uint64_t generation_ = 0;
  std::size_t claimed_ = 0;
  std::size_t taken_ = 0;
  bool ended_ = false;
  std::exception_ptr died_;  // a thread is gone, and what it claimed later on would never come
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
