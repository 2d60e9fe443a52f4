// The gradients of a model's parameters, in buckets that travel one after the other: the bucket of each parameter, and the
// memory of the buckets. They get memory when the order of the gradients is known.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replicas.h"

namespace lockstep::ddp {

struct Bucket {
  std::vector<std::size_t> parameters;
  std::optional<FlatBucket> flat;  // none before allocate()
  std::optional<GradBucket> view;  // of `flat`, for hooks
};

class Buckets {
 public:
  /// Assigns the parameters from the last to the first, since gradients arrive roughly in that order.
  Buckets(comm::Communicator& communicator, const DistributedDataParallelOptions& options,
          std::vector<NamedTensor> parameters);

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  /// In the order of travel.
  std::vector<Bucket>& list() { return buckets_; }
  /// The names of each bucket's parameters.
  std::vector<std::vector<std::string>> layout() const;

  /// Assigns the parameters in another order, to buckets that have no memory yet.
  void assign(const std::vector<std::size_t>& order);
  bool allocated() const { return buckets_.front().flat.has_value(); }
  /// Gives the buckets memory, one after the other, and moves gradients there, which frees their old memory.
  void allocate();

  std::size_t bucket_of(std::size_t parameter) const { return places_[parameter].bucket; }
  /// Puts the gradient, zeros if there is none, into the bucket. With gradient_as_bucket_view, makes .grad a view of it.
  /// Throws UsageError for a sparse one.
  void take_gradient(std::size_t parameter);
  /// Gives the parameters that any rank used the .grad that is in the bucket. Others keep theirs, or none, so that optimizers
  /// do not change them.
  void give_back_gradients(const std::vector<std::uint8_t>& used_anywhere) const;

 private:
  struct Place {
    std::size_t bucket = 0;
    torch::Tensor view;  // of the bucket's memory
  };

  comm::Communicator& communicator_;
  const DistributedDataParallelOptions& options_;
  std::vector<NamedTensor> parameters_;
  std::vector<Place> places_;  // by parameter
  std::vector<Bucket> buckets_;
};

}  // namespace lockstep::ddp
