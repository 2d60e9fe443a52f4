#include "runtime/data/batch/complete_on_device.h"

#include <torch/torch.h>

namespace lockstep::data {

void complete_on_device(Batch& batch) {
  constexpr std::int64_t kWithoutSign = 0xffff;
  const bool unsigned_tokens = batch.tokens.scalar_type() == torch::kInt16;
  batch.tokens = batch.tokens.to(torch::kInt64);
  if (unsigned_tokens) batch.tokens.bitwise_and_(kWithoutSign);

  const auto options = batch.tokens.options();
  const torch::Tensor starts = batch.cu_seqlens.slice(0, 0, -1);
  const torch::Tensor lengths = batch.cu_seqlens.slice(0, 1) - starts;
  if (batch.tokens.dim() == 2) {  // padded
    batch.positions = torch::arange(batch.tokens.size(1), options).repeat({batch.tokens.size(0), 1});
    batch.attention_mask = batch.positions < lengths.unsqueeze(1);
    if (!batch.loss_mask.defined()) batch.loss_mask = batch.attention_mask & (batch.positions > 0);
    return;
  }
  // With the result's size LibTorch does not ask the device for it.
  const std::int64_t count = batch.tokens.size(0);
  batch.positions = torch::arange(count, options) - starts.repeat_interleave(lengths, 0, count);
  if (!batch.loss_mask.defined()) batch.loss_mask = batch.positions > 0;
}

}  // namespace lockstep::data
