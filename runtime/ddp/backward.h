// One synchronised backward: the gradients that have arrived, and the reductions of buckets. A bucket's reduction starts when
// all its gradients, and those of the buckets before it, are complete. So all ranks start reductions in the same order, even
// if gradients arrive in another order.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/ddp/buckets.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/sync_observer.h"

namespace lockstep::ddp {

class Backward {
 public:
  /// `expected`: the gradients that each parameter gets, empty until learn(). `collects`: reductions start after the end
  /// only, so that the buckets may still be changed. `reduce` starts the reduction of a bucket.
  Backward(Buckets& buckets, const DistributedDataParallelOptions& options, SyncObserver& observer,
           std::vector<std::uint32_t>& expected, bool collects, std::function<CommFuture(Bucket&)> reduce);
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  /// The parameter will get no gradient, so its bucket need not wait for the end.
  void assume_unused(std::size_t parameter) { mark_ready(parameter); }
  void gradient_arrived(std::size_t parameter);
  /// Starts the reductions of the buckets that are complete.
  void launch();

  // After the end, in this order.

  /// Throws Error naming a parameter if static_graph is set and other gradients arrived than in an earlier backward.
  void learn();
  /// The parameters in the order of their last gradients; those without one follow. Empty if no gradient arrived.
  std::vector<std::size_t> order() const;
  /// Completes all buckets. Throws Error naming a parameter without a gradient, unless that may happen.
  void complete(bool may_miss_gradients);
  /// Waits for all reductions, after launch().
  void wait();

  /// Keeps the memory of a hook's operations for ever. They cannot be cancelled, and they wait for other ranks.
  void abandon();

 private:
  struct Arrivals {
    std::uint32_t count = 0;
    std::size_t last = std::numeric_limits<std::size_t>::max();  // position among all arrivals
    bool ready = false;                                          // the gradient is in the bucket
  };
  void arrived_again(std::size_t parameter);
  void mark_ready(std::size_t parameter);
  void refuse_frozen(std::size_t parameter) const;
  void refuse_missing(std::size_t parameter) const;
  void refuse_count(std::size_t parameter) const;

  Buckets& buckets_;
  const DistributedDataParallelOptions& options_;
  SyncObserver& observer_;
  std::vector<std::uint32_t>& expected_;
  bool collects_;
  std::function<CommFuture(Bucket&)> reduce_;
  std::vector<Arrivals> arrivals_;  // by parameter
  std::size_t arrived_ = 0;
  std::size_t ready_in_bucket_ = 0;     // of the next bucket's first parameters
  std::vector<CommFuture> reductions_;  // of the first buckets
};

}  // namespace lockstep::ddp
