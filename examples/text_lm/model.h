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

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/error.h"
#include "examples/text_lm/options.h"
#include "runtime/data/loader_options.h"
#include "runtime/train/activation_checkpoint.h"

namespace lockstep::text_lm {

// Queries are processed in blocks, so that most of the upper triangle, which is masked, is never computed.
inline constexpr std::int64_t kQueryBlock = 128;

// The target of a token that is not predicted.
inline constexpr std::int64_t kIgnored = -100;

// The deviations of the initial weights. The embedding's is smaller: a norm follows it, and a step of the
// optimizer changes the direction of a short vector more.
inline constexpr double kDeviation = 0.02;
inline constexpr double kEmbeddingDeviation = 0.005;

/// Attention of one sequence; all are [heads, length, width of a head].
inline torch::Tensor causal_attention(const torch::Tensor& queries, const torch::Tensor& keys,
                                      const torch::Tensor& values, const torch::Tensor& mask) {
  std::vector<torch::Tensor> blocks;
  std::int64_t begin = 0;
  for (const torch::Tensor& block : queries.split(kQueryBlock, 1)) {
    const std::int64_t end = begin + block.size(1);
    auto scores = torch::matmul(block, keys.slice(1, 0, end).transpose(1, 2));
    scores.slice(2, begin, end).add_(mask.slice(0, 0, end - begin).slice(1, 0, end - begin));
    blocks.push_back(torch::matmul(torch::softmax(scores, -1), values.slice(1, 0, end)));
    begin = end;
  }
  return blocks.size() == 1 ? blocks.front() : torch::cat(blocks, 1);
}

/// Attention of each token to itself and to earlier tokens of its sequence. `queries`, `keys` and `values`
/// are [T, heads, width of a head]; `cu_seqlens` (int32 or int64, [n + 1]) has the beginning of each
/// sequence. The result has the same shape.
inline torch::Tensor attention_per_sequence(const torch::Tensor& queries, const torch::Tensor& keys,
                                            const torch::Tensor& values, const torch::Tensor& cu_seqlens) {
  const auto mask = torch::full({kQueryBlock, kQueryBlock}, -std::numeric_limits<double>::infinity(),
                                queries.options().requires_grad(false))
                        .triu(1);
  const auto scaled = (queries / std::sqrt(static_cast<double>(queries.size(2)))).transpose(0, 1);
  const auto bounds = cu_seqlens.to(torch::kCPU, torch::kInt64);
  const auto* bound = bounds.data_ptr<std::int64_t>();
  // split() has one gradient; that of each slice() would be as large as all sequences together.
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i + 1 < bounds.size(0); ++i) lengths.push_back(bound[i + 1] - bound[i]);
  const auto q = scaled.split_with_sizes(lengths, 1);
  const auto k = keys.transpose(0, 1).split_with_sizes(lengths, 1);
  const auto v = values.transpose(0, 1).split_with_sizes(lengths, 1);
  std::vector<torch::Tensor> sequences;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    sequences.push_back(causal_attention(q[i], k[i], v[i], mask));
  return torch::cat(sequences, 1).transpose(0, 1);
}

/// Rotates each pair of a head's numbers (i, i + half) by the angle of the token's position.
inline torch::Tensor rotate(const torch::Tensor& heads, const torch::Tensor& rotation) {
  const auto halves = heads.chunk(2, -1);
  const auto& cosine = rotation[0];
  const auto& sine = rotation[1];
  return torch::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

inline torch::nn::Linear linear(std::int64_t from, std::int64_t to, double deviation = kDeviation) {
  torch::nn::Linear layer(torch::nn::LinearOptions(from, to).bias(false));
  torch::nn::init::normal_(layer->weight, 0, deviation);
  return layer;
}

inline torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/// Normalise, attend, add; normalise, feed forward, add.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelOptions& options) : heads_(options.heads) {
    const std::int64_t width = options.width;
    // Smaller, so that the sum of all blocks does not grow with their number.
    const double added = kDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
    attention_norm_ = register_module("attention_norm", layer_norm(width));
    qkv_ = register_module("qkv", linear(width, 3 * width));
    attention_out_ = register_module("attention_out", linear(width, width, added));
    feed_forward_norm_ = register_module("feed_forward_norm", layer_norm(width));
    expand_ = register_module("expand", linear(width, 4 * width));
    contract_ = register_module("contract", linear(4 * width, width, added));
  }

  /// `rotation` holds the cosines and sines of each token's position: [2, T, 1, width of a head / 2].
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& rotation,
                        const torch::Tensor& cu_seqlens) {
    const auto heads = qkv_(attention_norm_(hidden)).view({hidden.size(0), 3, heads_, -1}).unbind(1);
    const auto mixed =
        attention_per_sequence(rotate(heads[0], rotation), rotate(heads[1], rotation), heads[2], cu_seqlens);
    const auto attended = hidden + attention_out_(mixed.reshape({hidden.size(0), -1}));
    return attended + contract_(torch::gelu(expand_(feed_forward_norm_(attended))));
  }

 private:
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
  explicit LanguageModelImpl(const ModelOptions& options) : options_(options) {
    if (options.heads < 1 || options.width % (2 * options.heads) != 0) {
      fail_usage("a width of {} does not divide into {} heads of an even width", options.width,
                 options.heads);
    }
    embedding_ = register_module("embedding", torch::nn::Embedding(options.vocabulary, options.width));
    torch::nn::init::normal_(embedding_->weight, 0, kEmbeddingDeviation);
    embedding_norm_ = register_module("embedding_norm", layer_norm(options.width));
    for (std::int64_t i = 0; i < options.layers; ++i)
      blocks_.push_back(register_module("block" + std::to_string(i), Block(options)));
    norm_ = register_module("norm", layer_norm(options.width));
    output_ = register_module("output", linear(options.width, options.vocabulary));
  }

  /// Returns logits [T, vocabulary]: row i predicts the token after token i. `tokens` and `positions` are
  /// int64 [T].
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& positions,
                        const torch::Tensor& cu_seqlens) {
    const auto turn = rotation(positions);
    auto hidden = embedding_norm_(embedding_(tokens));
    // Attention reads the bounds on the CPU: from a GPU they are copied once, not in each block.
    const auto bounds = cu_seqlens.to(torch::kCPU, torch::kInt64);
    for (auto& block : blocks_) {
      hidden = options_.activation_checkpointing ? activation_checkpoint(block, hidden, turn, bounds)
                                                 : block(hidden, turn, bounds);
    }
    return output_(norm_(hidden));
  }

  std::int64_t parameter_count() const {
    std::int64_t count = 0;
    for (const auto& parameter : parameters()) count += parameter.numel();
    return count;
  }
  const ModelOptions& options() const { return options_; }

 private:
  torch::Tensor rotation(const torch::Tensor& positions) const {
    const std::int64_t half = options_.width / options_.heads / 2;
    const auto exponents =
        torch::arange(half, embedding_->weight.options().requires_grad(false)) / static_cast<double>(half);
    const auto frequencies = torch::pow(10'000.0, -exponents);
    const auto angles = (positions.to(frequencies.dtype()).unsqueeze(1) * frequencies).unsqueeze(1);
    return torch::stack({angles.cos(), angles.sin()});
  }

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
inline torch::Tensor loss_sum(const torch::Tensor& logits, const torch::Tensor& tokens,
                              const torch::Tensor& loss_mask) {
  const auto targets = tokens.masked_fill(loss_mask.logical_not(), kIgnored).roll(-1);
  return torch::nn::functional::cross_entropy(
      logits, targets,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kIgnored).reduction(torch::kSum));
}

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

/// For LoaderOptions::transform: throws Error for a token that is not in the vocabulary, because the pages were made
/// with another tokenizer. The loader's threads look at each sample, so the training waits for nothing.
inline data::Transform token_check(std::int64_t vocabulary) {
  return [vocabulary](const data::Sample& sample) {
    const auto highest = *std::max_element(sample.tokens.begin(), sample.tokens.end());
    if (highest < vocabulary) return;
    fail(
        "the pages contain token id {}, but the model's vocabulary ends at {}: give --vocabulary the value of prepare.sh's --vocab",
        highest, vocabulary - 1);
  };
}

}  // namespace lockstep::text_lm
