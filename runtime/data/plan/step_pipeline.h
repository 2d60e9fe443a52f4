// Two threads compose the steps of a block: one chooses a step's samples and deals them, the other exchanges
// them between the ranks and writes the step down. No step waits for anything that the second one does, so
// the steps are the same as with one thread.
//
// Threads: in_pipeline() is called by one; `finish` runs on another until it returns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <span>

#include "runtime/data/plan/step_packer.h"

namespace lockstep::data {

/// A dealt step on its way, and the rank that gets what was dealt first.
struct DealtStep {
  StepPacker packer;
  std::size_t first = 0;
};

/// Calls `deal` for one place after the other until it says false, and `finish` for each in the same order,
/// both as far ahead as there are places, a multiple of 4. Throws what either throws.
template <typename Deal, typename Finish>
void in_pipeline(std::span<DealtStep> places, Deal&& deal, Finish&& finish) {
  constexpr std::uint64_t kOver = std::uint64_t{1} << 63U;
  // Handed over at once: waking a thread takes as long as some steps, and longer where CPUs are busy.
  const std::uint64_t together = places.size() / 4;
  std::atomic<std::uint64_t> dealt = 0;     // with kOver: no more will come
  std::atomic<std::uint64_t> finished = 0;  // with kOver: no more is finished, after an error
  std::future<void> helper = std::async(std::launch::async, [&] {
    try {
      for (std::uint64_t done = 0;;) {
        const std::uint64_t ready = dealt.load(std::memory_order_acquire);
        if ((ready & ~kOver) <= done) {
          if ((ready & kOver) != 0) return;
          dealt.wait(ready, std::memory_order_acquire);
          continue;
        }
        finish(places[done % places.size()]);
        if (++done % together != 0) continue;
        finished.store(done, std::memory_order_release);
        finished.notify_one();
      }
    } catch (...) {
      finished.store(kOver, std::memory_order_release);
      finished.notify_one();
      throw;
    }
  });
  std::uint64_t count = 0;
  const auto end = [&] {
    dealt.store(count | kOver, std::memory_order_release);
    dealt.notify_one();
  };
  try {
    for (;;) {
      std::uint64_t done = finished.load(std::memory_order_acquire);
      while ((done & kOver) == 0 && count - done == places.size()) {
        finished.wait(done, std::memory_order_acquire);
        done = finished.load(std::memory_order_acquire);
      }
      if ((done & kOver) != 0 || !deal(places[count % places.size()])) break;
      if (++count % together != 0) continue;
      dealt.store(count, std::memory_order_release);
      dealt.notify_one();
    }
  } catch (...) {
    end();
    helper.wait();
    throw;
  }
  end();
  helper.get();
}

}  // namespace lockstep::data
