// Times how long the training loop waits for a data loader other than ours, so that the report can say that a job
// waits for its data:
//
//   for (auto& batch : lockstep::profile::timed_batches(world.timer(), *torch_loader)) { … }
//
// Threads: those of the timer.
#pragma once

#include <utility>

#include "runtime/profile/step_timer.h"

namespace lockstep::profile {

/// Iterates over `batches`, which has begin() and end(), and counts the time of each advance as Phase::data_wait.
/// `timer` and `batches` must outlive this object.
template <typename Batches>
class TimedBatches {
 public:
  TimedBatches(StepTimer& timer, Batches& batches) : timer_(&timer), batches_(&batches) {}

  template <typename Inner>
  class Iterator {
   public:
    Iterator(StepTimer& timer, Inner inner) : timer_(&timer), inner_(std::move(inner)) {}
    decltype(auto) operator*() { return *inner_; }
    Iterator& operator++() {
      const auto scope = timer_->phase(Phase::data_wait);
      ++inner_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return inner_ != other.inner_; }

   private:
    StepTimer* timer_;
    Inner inner_;
  };

  auto begin() {
    const auto scope = timer_->phase(Phase::data_wait);
    return Iterator(*timer_, batches_->begin());
  }
  auto end() { return Iterator(*timer_, batches_->end()); }

 private:
  StepTimer* timer_;
  Batches* batches_;
};

template <typename Batches>
TimedBatches<Batches> timed_batches(StepTimer& timer, Batches& batches) {
  return {timer, batches};
}

}  // namespace lockstep::profile
