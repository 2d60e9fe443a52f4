// One micro-batch as the loader hands it out, and a sample as a transform sees it.
//
// Threads: a Batch is a value; its tensors are shared like any others.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// Its samples end to end without padding (T tokens), or one per row (R rows, each as long as the longest,
/// L); or images. What does not apply is undefined. Tensors may be kept for as long as one likes: their
/// memory is used again only once nobody holds them.
struct Batch {
  torch::Tensor tokens;          ///< int64 [T] or [R, L]; padding is LoaderOptions::padding_token
  torch::Tensor positions;       ///< int64 [T] or [R, L]: from 0 within each sample
  torch::Tensor loss_mask;       ///< bool [T] or [R, L]: tokens that count in the loss
  torch::Tensor attention_mask;  ///< bool [R, L]: what is no padding; undefined in packed batches
  torch::Tensor images;          ///< uint8 [N, channels, height, width], as the memory format channels_last
  torch::Tensor labels;          ///< int64 [N]; undefined where there are none
  torch::Tensor cu_seqlens;      ///< int32 [n + 1]: where each sample would begin end to end, and T
  torch::Tensor sample_ids;  ///< int64 [n], on the CPU; sample_of(), piece_of(), epoch_of() take them apart
  std::int64_t max_length = 0;
  std::int64_t token_count = 0;  ///< without padding
  std::int64_t loss_tokens = 0;  ///< that the loss mask lets count
  std::int64_t padding = 0;      ///< tokens
  std::int64_t step = 0;         ///< optimizer step of this epoch, from 0; goes on after resume()
  bool last_of_step = false;  ///< this rank's last micro-batch of the step: synchronise and update after it
  /// No samples. Where it is last_of_step, this rank has none in the step: call DDP's skip(). Else other
  /// ranks have a micro-batch more (only with PlanOptions::equal_micro_batches): take part in what their
  /// forward communicates.
  bool empty = false;
};

/// A sample in its place in the batch that is being built.
struct Sample {
  SampleId id = 0;
  std::string_view key;            ///< its name in the pack
  std::span<std::int64_t> tokens;  ///< to change in place; a shorter span makes the sample shorter
  std::span<bool> loss_mask;       ///< all but the first token, which nothing predicts; false: does not count
  std::uint64_t seed = 0;  ///< for randomness: the same for this sample in this epoch, wherever it runs
  int worker = 0;          ///< which worker runs this, from 0
  std::uint64_t worker_seed = 0;  ///< differs between workers and ranks
};

/// User code that runs on the worker threads, several at a time, after a sample was read. What it throws is
/// thrown from the training loop, with the sample's name.
using Transform = std::function<void(Sample&)>;

}  // namespace lockstep::data
