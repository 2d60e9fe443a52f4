// The model of bench_gpu: GPT-2 with 124 M parameters (12 layers, width 768, the output layer shares the embedding's
// weight). gpt.py is the same in Python, operation by operation, so that the benchmark compares only the work around it.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace lockstep::bench {

struct GptOptions {
  std::int64_t vocabulary = 50'304;  // GPT-2's 50 257, rounded up for tensor cores
  std::int64_t context = 1024;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t layers = 12;
};

struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& options) : heads(options.heads) {
    const auto width = options.width;
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    expand = register_module("expand", torch::nn::Linear(width, 4 * width));
    contract = register_module("contract", torch::nn::Linear(4 * width, width));
  }

  /// [sequences, tokens, width]
  torch::Tensor forward(const torch::Tensor& input) {
    const auto parts = qkv(norm1(input)).chunk(3, -1);
    const auto split = [&](const torch::Tensor& part) {
      return part.view({input.size(0), input.size(1), heads, -1}).transpose(1, 2);
    };
    const auto mixed = at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {},
                                                        0.0, /*is_causal=*/true);
    const auto attended = input + out(mixed.transpose(1, 2).reshape(input.sizes()));
    return attended + contract(torch::gelu(expand(norm2(attended)), "tanh"));
  }

  std::int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, expand{nullptr}, contract{nullptr};
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options) {
    tokens = register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width));
    positions = register_module("positions", torch::nn::Embedding(options.context, options.width));
    for (std::int64_t i = 0; i < options.layers; ++i)
      blocks.push_back(register_module(fmt::format("block{}", i), GptBlock(options)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      if (parameter.dim() > 1) parameter.normal_(0, 0.02);
  }

  /// The mean cross entropy of each token given the earlier ones of its row; `rows` is int64 [sequences, tokens].
  torch::Tensor forward(const torch::Tensor& rows) {
    auto hidden = tokens(rows) + positions(torch::arange(rows.size(1), rows.options()));
    for (auto& block : blocks) hidden = block(hidden);
    const auto logits = torch::nn::functional::linear(norm(hidden), tokens->weight);
    return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                                rows.roll(-1, 1).view(-1));
  }

  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  std::vector<GptBlock> blocks;
};
TORCH_MODULE(Gpt);

}  // namespace lockstep::bench
