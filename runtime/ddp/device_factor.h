// The factor for gradients on a device that are averaged by count. It is computed on the device, in the order of the
// communicator's stream, so neither the host nor backward waits for the counts of other ranks.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "runtime/comm/communicator.h"

namespace lockstep::ddp {

class DeviceFactor {
 public:
  explicit DeviceFactor(comm::Communicator& communicator) : communicator_(communicator) {}

  /// Starts to compute expected / the sum of all ranks' counts, or 0 if that is 0. All ranks call it, before the
  /// reductions that use it.
  void begin(torch::Device device, std::int64_t count, double expected);
  void forget() { factor_ = narrow_ = torch::Tensor(); }
  bool known() const { return factor_.defined(); }

  /// Multiplies in the order of the communicator's stream, after the work that the calling thread's stream has.
  void multiply_before_reduction(const torch::Tensor& gradients) const;
  /// Multiplies the mean that a hook has left, also by the number of ranks, in the calling thread's stream, which waits for
  /// the factor.
  void multiply_after_hook(const torch::Tensor& gradients, int ranks) const;

 private:
  const torch::Tensor& factor_for(const torch::Tensor& gradients) const;

  comm::Communicator& communicator_;
  torch::Tensor count_;   // in use until the sum has ended
  torch::Tensor factor_;  // [1], double
  torch::Tensor narrow_;  // the same as float
};

}  // namespace lockstep::ddp
