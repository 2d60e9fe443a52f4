// A micro-batch as the loop receives it, and a sample as a transform receives it.
//
// Threads: a Batch is a value; its tensors are shared like any others.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "runtime/data/plan/sample_id.h"

namespace lockstep::data {

/// A batch holds samples end to end without padding (T tokens), samples in R padded rows of length L, or
/// images. Tensors that do not apply are undefined. Tensors may be kept: their memory is reused only after
/// they are destroyed.
struct Batch {
  torch::Tensor tokens;          ///< int64 [T] or [R, L]; padding is LoaderOptions::padding_token
  torch::Tensor positions;       ///< int64 [T] or [R, L]: position in the sample, from 0
  torch::Tensor loss_mask;       ///< bool [T] or [R, L]: tokens that count in the loss
  torch::Tensor attention_mask;  ///< bool [R, L]: false for padding; undefined in packed batches
  torch::Tensor images;          ///< uint8 [N, channels, height, width], as the memory format channels_last
  torch::Tensor labels;          ///< int64 [N]; undefined without labels
  torch::Tensor cu_seqlens;      ///< int32 [n + 1]: where each sample begins, as if end to end, and T
  torch::Tensor sample_ids;      ///< int64 [n], on the CPU; for sample_of(), piece_of() and epoch_of()
  std::int64_t max_length = 0;
  std::int64_t token_count = 0;  ///< without padding
  std::int64_t loss_tokens = 0;  ///< tokens that the loss mask counts
  std::int64_t padding = 0;      ///< padding tokens
  std::int64_t step = 0;         ///< optimizer step of this epoch, from 0; continues after resume()
  bool last_of_step = false;  ///< this rank's last micro-batch of the step: synchronise and update after it
  /// The batch has no samples. If it is last_of_step, this rank has no samples in the step: call DDP's
  /// skip(). Otherwise (only with PlanOptions::equal_micro_batches) other ranks have a micro-batch at this
  /// time: take part in the communication of their forward.
  bool empty = false;
};

/// A sample that a transform may change in the batch.
struct Sample {
  SampleId id = 0;
  std::string_view key;            ///< its name in the pack
  std::span<std::int64_t> tokens;  ///< to change in place; assign a shorter span to shorten the sample
  std::span<bool> loss_mask;       ///< whether a token counts; false for the first, which no token predicts
  std::uint64_t seed = 0;          ///< for random numbers: the same for this sample and epoch on any worker
  int worker = 0;                  ///< number of the worker, from 0
  std::uint64_t worker_seed = 0;   ///< differs between workers and ranks
};

/// User code that the worker threads run on each sample, several at a time. Its exceptions are thrown from
/// the training loop, with the sample's name.
using Transform = std::function<void(Sample&)>;

}  // namespace lockstep::data
