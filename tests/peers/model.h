// The model of the equality tests; tests/peers/model.py has the same operations in Python.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>

namespace lockstep::peers {

constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kVocabulary = 40;

struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
  }

  torch::Tensor forward(const torch::Tensor& hidden) {
    const auto parts = qkv(hidden).chunk(3, -1);
    const auto scores = torch::softmax(
        torch::matmul(parts[0], parts[1].transpose(1, 2)) / std::sqrt(static_cast<double>(kWidth)), -1);
    return out(torch::matmul(scores, parts[2]));
  }

  torch::nn::Linear qkv{nullptr}, out{nullptr};
};
TORCH_MODULE(Attention);

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    using torch::nn::Linear;
    embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
    extra = register_module("extra", torch::nn::Embedding(kVocabulary, kWidth));
    attention = register_module("attention", Attention());
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(kWidth));
    expand = register_module("expand", Linear(kWidth, 2 * kWidth));
    contract = register_module("contract", Linear(2 * kWidth, kWidth));
    left = register_module("left", Linear(kWidth, kWidth));
    right = register_module("right", Linear(kWidth, kWidth));
    frozen = register_module("frozen", Linear(kWidth, kWidth));
    bias = register_parameter("bias", torch::zeros({kVocabulary}));
    frozen->weight.set_requires_grad(false);
    frozen->bias.set_requires_grad(false);
    to(torch::kDouble);
    batch_norm->num_batches_tracked.set_data(torch::zeros({}, torch::kLong));  // a count stays an integer
  }

  /// Returns logits; `with_left` and `with_right` select the branches.
  torch::Tensor forward(const torch::Tensor& tokens, bool with_left, bool with_right) {
    auto hidden = embedding(tokens) + extra(tokens) * 0.5;
    hidden = norm(hidden + attention(hidden));
    hidden = norm(hidden + attention(hidden));  // the module is called twice
    auto rows = batch_norm(hidden.flatten(0, 1));
    rows = rows + contract(torch::relu(expand(rows))) + torch::tanh(frozen(rows));
    if (with_left) rows = rows + torch::tanh(left(rows));
    if (with_right) rows = rows + torch::tanh(right(rows));
    // The weight is used in two places.
    return torch::nn::functional::linear(rows, embedding->weight, bias);
  }

  torch::nn::Embedding embedding{nullptr}, extra{nullptr};
  Attention attention{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::Linear expand{nullptr}, contract{nullptr}, left{nullptr}, right{nullptr}, frozen{nullptr};
  torch::Tensor bias;
};
TORCH_MODULE(Model);

/// The mean over all tokens.
inline torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits, targets.flatten());
}

}  // namespace lockstep::peers
