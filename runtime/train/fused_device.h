// The steps of the fused optimizers and of GradScaler for parameters on a device: LibTorch's fused kernels, a few launches
// for all parameters; where the device has none, its foreach kernels. This header is internal.
//
// Threads: the training thread. The work goes to its current stream; the host waits for nothing.
#pragma once

#include <torch/types.h>

#include <vector>

#include "runtime/train/fused_kernels.h"

namespace lockstep::train {

/// Parameters of one type on one device that make the same step.
template <typename Step>
struct DeviceParameters {
  Step step = {};
  bool optional_state = false;
  std::vector<torch::Tensor> values = {};
  std::vector<torch::Tensor> gradients = {};
  std::vector<torch::Tensor> averages = {};         ///< the momenta of SGD, if it has any
  std::vector<torch::Tensor> squares = {};          ///< Adam only
  std::vector<torch::Tensor> largest_squares = {};  ///< amsgrad only
};

void adam(const DeviceParameters<AdamStep>& parameters, bool decoupled);
void sgd(const DeviceParameters<SgdStep>& parameters);

/// Multiplies float tensors by `factor`, a float on their device, with the kernel of PyTorch's GradScaler. It writes 1 into
/// `not_finite`, another one, if an element is NaN or infinite. Returns false if this LibTorch has no such kernel for the
/// device.
bool unscale(const std::vector<torch::Tensor>& tensors, const torch::Tensor& factor,
             torch::Tensor& not_finite);

/// Collects the parameters of one optimizer's step.
template <typename Step>
class DeviceParameterLists {
 public:
  /// The parameters that make this step; the caller adds this one's tensors. `optional_state`: it has a momentum, or
  /// amsgrad's largest squares.
  DeviceParameters<Step>& with(const Step& step, const torch::Tensor& parameter, bool optional_state) {
    for (auto& list : lists_) {
      const torch::Tensor& first = list.values.front();
      if (list.step == step && list.optional_state == optional_state &&
          first.device() == parameter.device() && first.dtype() == parameter.dtype())
        return list;
    }
    return lists_.emplace_back(DeviceParameters<Step>{.step = step, .optional_state = optional_state});
  }
  const std::vector<DeviceParameters<Step>>& lists() const { return lists_; }

 private:
  std::vector<DeviceParameters<Step>> lists_;
};

}  // namespace lockstep::train
