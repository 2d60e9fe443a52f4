// The memory format channels_last (NHWC). Convolutions in it are faster on CPUs with AVX-512 and on GPUs with tensor
// cores. Weights and batches must both have it; the loader's images have it already.
//
//   lockstep::to_channels_last(*model);     // before DistributedDataParallel and the optimizer are made
//   …
//   model(lockstep::to_channels_last(images));
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

namespace lockstep {

/// The tensor in channels_last order, if it has four dimensions (images) or five (volumes); other tensors are
/// returned unchanged. Copies only if the order differs.
inline torch::Tensor to_channels_last(const torch::Tensor& tensor) {
  if (tensor.dim() == 4) return tensor.contiguous(torch::MemoryFormat::ChannelsLast);
  if (tensor.dim() == 5) return tensor.contiguous(torch::MemoryFormat::ChannelsLast3d);
  return tensor;
}

/// Changes all parameters and buffers of four or five dimensions. Gradients must not exist yet.
inline void to_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.set_data(to_channels_last(parameter));
  for (auto& buffer : module.buffers()) buffer.set_data(to_channels_last(buffer));
}

}  // namespace lockstep
