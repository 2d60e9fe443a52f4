// Two threads compose the steps of a block: one chooses a step's samples and deals them, the other exchanges
// them between the ranks and writes the step down. No step waits for anything that the second one does, so
// the steps are the same as with one thread. Whichever would have to wait for the other reads the next block
// meanwhile; the one that deals also exchanges, where that takes longer than dealing.
//
// Threads: in_pipeline() is called by one and `deal` runs there; `finish` runs on another until it returns,
// `exchange` on both, `meanwhile` on either, on one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/data/plan/step_packer.h"

namespace lockstep::data {

/// A dealt step on its way, and the rank that gets what was dealt first.
struct DealtStep {
  StepPacker packer;
  std::size_t first = 0;
};

/// What in_pipeline() does, below.
template <typename Deal, typename Exchange, typename Finish, typename Meanwhile>
class StepPipeline {
 public:
  StepPipeline(std::span<DealtStep> places, Deal& deal, Exchange& exchange, Finish& finish,
               Meanwhile& meanwhile)
      : places_(places),
        together_(places.size() / 4),
        deal_(deal),
        exchange_(exchange),
        finish_(finish),
        meanwhile_(meanwhile),
        exchanged_(places.size()) {}

  void run() {
    std::future<void> helper = std::async(std::launch::async, [this] { finish_all(); });
    try {
      deal_all();
    } catch (...) {
      end_dealing();
      helper.wait();
      throw;
    }
    end_dealing();
    while (helper.wait_for(std::chrono::seconds(0)) != std::future_status::ready && spend_waiting()) {
    }
    helper.get();
  }

 private:
  enum class Exchanged { none, begun, done, failed };
  static constexpr std::uint64_t kOver = std::uint64_t{1} << 63U;

  void deal_all() {
    for (;; ++count_) {
      if (count_ > 0 && count_ % together_ == 0) publish(dealt_, count_);
      std::uint64_t done = finished_.load(std::memory_order_acquire);
      while ((done & kOver) == 0 && count_ - done == places_.size()) {
        if (!spend_waiting() && !exchange_last(done)) finished_.wait(done, std::memory_order_acquire);
        done = finished_.load(std::memory_order_acquire);
      }
      const std::size_t place = count_ % places_.size();
      if ((done & kOver) != 0 || !deal_(places_[place])) return;
      exchanged_[place].store(Exchanged::none, std::memory_order_relaxed);
    }
  }

  void end_dealing() { publish(dealt_, count_ | kOver); }

  // On the other thread.
  void finish_all() {
    try {
      for (std::uint64_t done = 0;;) {
        const std::uint64_t ready = dealt_.load(std::memory_order_acquire);
        if ((ready & ~kOver) <= done) {
          if ((ready & kOver) != 0) return;
          if (!spend_waiting()) dealt_.wait(ready, std::memory_order_acquire);
          continue;
        }
        const std::size_t place = done % places_.size();
        if (!exchange_at(place) && !wait_for_exchange(place)) return;
        finish_(places_[place]);
        if (++done % together_ == 0) publish(finished_, done);
      }
    } catch (...) {
      publish(finished_, kOver);
      throw;
    }
  }

  static void publish(std::atomic<std::uint64_t>& count, std::uint64_t value) {
    count.store(value, std::memory_order_release);
    count.notify_one();
  }

  bool spend_waiting() {
    const std::unique_lock lock(waits_, std::try_to_lock);
    return lock.owns_lock() && meanwhile_();
  }

  // Of what is dealt behind `done`, what the other thread comes to last. False: nothing is left to begin.
  bool exchange_last(std::uint64_t done) {
    for (std::uint64_t i = count_; i-- > done;) {
      if (exchange_at(i % places_.size())) return true;
    }
    return false;
  }

  // False: a thread has begun it already.
  bool exchange_at(std::size_t place) {
    std::atomic<Exchanged>& state = exchanged_[place];
    Exchanged expected = Exchanged::none;
    if (!state.compare_exchange_strong(expected, Exchanged::begun, std::memory_order_acquire)) return false;
    Exchanged reached = Exchanged::failed;
    const auto tell = [&] {
      state.store(reached, std::memory_order_release);
      state.notify_one();
    };
    try {
      exchange_(places_[place]);
    } catch (...) {
      tell();
      throw;
    }
    reached = Exchanged::done;
    tell();
    return true;
  }

  // False: it failed, on the thread that deals.
  bool wait_for_exchange(std::size_t place) {
    std::atomic<Exchanged>& state = exchanged_[place];
    state.wait(Exchanged::begun, std::memory_order_acquire);
    return state.load(std::memory_order_acquire) == Exchanged::done;
  }

  const std::span<DealtStep> places_;
  const std::uint64_t together_;  // are handed over: waking a thread takes as long as some steps
  Deal& deal_;
  Exchange& exchange_;
  Finish& finish_;
  Meanwhile& meanwhile_;

  std::uint64_t count_ = 0;                        // dealt so far, as the thread that deals knows
  std::atomic<std::uint64_t> dealt_ = 0;           // as it said; with kOver: no more will come
  std::atomic<std::uint64_t> finished_ = 0;        // with kOver: no more is finished, after an error
  std::vector<std::atomic<Exchanged>> exchanged_;  // of each place
  std::mutex waits_;                               // of whoever calls meanwhile_
};

/// Calls `deal` for one place after the other until it says false, `exchange` for each in any order, and then
/// `finish` in the order of dealing, as far ahead as there are places, a multiple of 4. Where one would wait,
/// calls `meanwhile` instead, which does a little of something else and says whether there was any. Throws
/// what any of them throws.
template <typename Deal, typename Exchange, typename Finish, typename Meanwhile>
void in_pipeline(std::span<DealtStep> places, Deal&& deal, Exchange&& exchange, Finish&& finish,
                 Meanwhile&& meanwhile) {
  StepPipeline(places, deal, exchange, finish, meanwhile).run();
}

}  // namespace lockstep::data
