#include "examples/text_lm/model.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/error.h"
#include "runtime/train/activation_checkpoint.h"

namespace lockstep::text_lm {
namespace {

// Queries are processed in blocks, so that most of the upper triangle, which is masked, is never computed.
constexpr std::int64_t kQueryBlock = 128;

// The target of a token that is not predicted.
constexpr std::int64_t kIgnored = -100;

/// Attention of one sequence; all are [heads, length, width of a head].
torch::Tensor causal_attention(const torch::Tensor& queries, const torch::Tensor& keys,
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

/// Rotates each pair of a head's numbers (i, i + half) by the angle of the token's position.
torch::Tensor rotate(const torch::Tensor& heads, const torch::Tensor& rotation) {
  const auto halves = heads.chunk(2, -1);
  const auto& cosine = rotation[0];
  const auto& sine = rotation[1];
  return torch::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

// The deviations of the initial weights. The embedding's is smaller: a norm follows it, and a step of the
// optimizer changes the direction of a short vector more.
constexpr double kDeviation = 0.02;
constexpr double kEmbeddingDeviation = 0.005;

torch::nn::Linear linear(std::int64_t from, std::int64_t to, double deviation = kDeviation) {
  torch::nn::Linear layer(torch::nn::LinearOptions(from, to).bias(false));
  torch::nn::init::normal_(layer->weight, 0, deviation);
  return layer;
}

}  // namespace

torch::Tensor attention_per_sequence(const torch::Tensor& queries, const torch::Tensor& keys,
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

BlockImpl::BlockImpl(const ModelOptions& options) : heads_(options.heads) {
  const std::int64_t width = options.width;
  // Smaller, so that the sum of all blocks does not grow with their number.
  const double added = kDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
  const auto norm = [&] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); };
  attention_norm_ = register_module("attention_norm", norm());
  qkv_ = register_module("qkv", linear(width, 3 * width));
  attention_out_ = register_module("attention_out", linear(width, width, added));
  feed_forward_norm_ = register_module("feed_forward_norm", norm());
  expand_ = register_module("expand", linear(width, 4 * width));
  contract_ = register_module("contract", linear(4 * width, width, added));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& hidden, const torch::Tensor& rotation,
                                 const torch::Tensor& cu_seqlens) {
  const auto attended = hidden + attend(attention_norm_(hidden), rotation, cu_seqlens);
  return attended + contract_(torch::gelu(expand_(feed_forward_norm_(attended))));
}

torch::Tensor BlockImpl::attend(const torch::Tensor& hidden, const torch::Tensor& rotation,
                                const torch::Tensor& cu_seqlens) {
  const auto heads = qkv_(hidden).view({hidden.size(0), 3, heads_, -1}).unbind(1);
  const auto mixed =
      attention_per_sequence(rotate(heads[0], rotation), rotate(heads[1], rotation), heads[2], cu_seqlens);
  return attention_out_(mixed.reshape({hidden.size(0), -1}));
}

LanguageModelImpl::LanguageModelImpl(const ModelOptions& options) : options_(options) {
  if (options.heads < 1 || options.width % (2 * options.heads) != 0) {
    fail_usage("a width of {} does not divide into {} heads of an even width", options.width, options.heads);
  }
  embedding_ = register_module("embedding", torch::nn::Embedding(options.vocabulary, options.width));
  torch::nn::init::normal_(embedding_->weight, 0, kEmbeddingDeviation);
  embedding_norm_ =
      register_module("embedding_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks_.push_back(register_module("block" + std::to_string(i), Block(options)));
  }
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  output_ = register_module("output", linear(options.width, options.vocabulary));
}

torch::Tensor LanguageModelImpl::forward(const torch::Tensor& tokens, const torch::Tensor& positions,
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

torch::Tensor LanguageModelImpl::rotation(const torch::Tensor& positions) const {
  const std::int64_t half = options_.width / options_.heads / 2;
  const auto exponents =
      torch::arange(half, embedding_->weight.options().requires_grad(false)) / static_cast<double>(half);
  const auto frequencies = torch::pow(10'000.0, -exponents);
  const auto angles = (positions.to(frequencies.dtype()).unsqueeze(1) * frequencies).unsqueeze(1);
  return torch::stack({angles.cos(), angles.sin()});
}

std::int64_t LanguageModelImpl::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

torch::Tensor loss_sum(const torch::Tensor& logits, const torch::Tensor& tokens,
                       const torch::Tensor& loss_mask) {
  const auto targets = tokens.masked_fill(loss_mask.logical_not(), kIgnored).roll(-1);
  return torch::nn::functional::cross_entropy(
      logits, targets,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kIgnored).reduction(torch::kSum));
}

void check_tokens(const torch::Tensor& tokens, std::int64_t vocabulary) {
  const auto highest = tokens.max().item<std::int64_t>();
  if (highest >= vocabulary) {
    fail(
        "the pages contain token id {}, but the model's vocabulary ends at {}: give --vocabulary the value of prepare.sh's --vocab",
        highest, vocabulary - 1);
  }
}

}  // namespace lockstep::text_lm
