// A decoder-only Transformer language model for packed batches: the sequences of a micro-batch lie end to end
// in one row of T tokens. So the linear layers, which are most of the work, process all tokens at once and no
// padding. Only attention works on one sequence at a time.
//
// It has pre-norm blocks and rotary positions. The output layer does not share the embedding's weights,
// because a small model then learns much faster in its first minutes.
//
// Threads: as any torch::nn::Module, one at a time.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "examples/text_lm/options.h"
#include "runtime/data/loader_options.h"

namespace lockstep::text_lm {

/// Attention of each token to itself and to earlier tokens of its sequence. `queries`, `keys` and `values`
/// are [T, heads, width of a head]; `cu_seqlens` (int32 or int64, [n + 1]) has the beginning of each
/// sequence. The result has the same shape.
torch::Tensor attention_per_sequence(const torch::Tensor& queries, const torch::Tensor& keys,
                                     const torch::Tensor& values, const torch::Tensor& cu_seqlens);

/// Normalise, attend, add; normalise, feed forward, add.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelOptions& options);

  /// `rotation` holds the cosines and sines of each token's position: [2, T, 1, width of a head / 2].
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& rotation,
                        const torch::Tensor& cu_seqlens);

 private:
  torch::Tensor attend(const torch::Tensor& hidden, const torch::Tensor& rotation,
                       const torch::Tensor& cu_seqlens);

  std::int64_t heads_;
  torch::nn::LayerNorm attention_norm_{nullptr};
  torch::nn::Linear qkv_{nullptr};
  torch::nn::Linear attention_out_{nullptr};
  torch::nn::LayerNorm feed_forward_norm_{nullptr};
  torch::nn::Linear expand_{nullptr};
  torch::nn::Linear contract_{nullptr};
};
TORCH_MODULE(Block);

class LanguageModelImpl : public torch::nn::Module {
 public:
  /// Throws UsageError if the width does not divide into heads of an even width.
  explicit LanguageModelImpl(const ModelOptions& options);

  /// Returns logits [T, vocabulary]: row i predicts the token after token i. `tokens` and `positions` are
  /// int64 [T].
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& positions,
                        const torch::Tensor& cu_seqlens);

  std::int64_t parameter_count() const;
  const ModelOptions& options() const { return options_; }

 private:
  torch::Tensor rotation(const torch::Tensor& positions) const;

  ModelOptions options_;
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::LayerNorm embedding_norm_{nullptr};
  std::vector<Block> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear output_{nullptr};
};
TORCH_MODULE(LanguageModel);

/// The sum of the cross entropies (in nats) of each token given the earlier ones of its sequence, over the
/// tokens where `loss_mask` (bool [T]) is true. It is false for the first token of a sequence and for
/// padding.
torch::Tensor loss_sum(const torch::Tensor& logits, const torch::Tensor& tokens,
                       const torch::Tensor& loss_mask);

/// The same for a packed or padded batch; `model` is a LanguageModel, or a DistributedDataParallel of one. A
/// padded row is a sequence like others: attention looks back only, so no token sees the padding at the end.
template <typename Model>
torch::Tensor loss_sum(Model& model, const data::Batch& batch) {
  if (batch.tokens.dim() == 1) {
    return loss_sum(model(batch.tokens, batch.positions, batch.cu_seqlens), batch.tokens, batch.loss_mask);
  }
  const auto rows = torch::arange(0, batch.tokens.numel() + 1, batch.tokens.size(1));
  const auto tokens = batch.tokens.flatten();
  return loss_sum(model(tokens, batch.positions.flatten(), rows), tokens, batch.loss_mask.flatten());
}

/// Throws Error if a token id is not in the vocabulary, because the pages were made with another tokenizer.
void check_tokens(const torch::Tensor& tokens, std::int64_t vocabulary);

}  // namespace lockstep::text_lm
