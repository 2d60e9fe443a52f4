// The model that bench_ddp trains: a Transformer encoder of 6 layers and width 512, 18.9 M parameters,
// without embedding and output layer. tests/peers/transformer.py is the same in Python, operation by
// operation, so that benchmarks compare only the work around it.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace lockstep::bench {

constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kLayers = 6;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    expand = register_module("expand", torch::nn::Linear(kWidth, 4 * kWidth));
    contract = register_module("contract", torch::nn::Linear(4 * kWidth, kWidth));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }

  /// [sequences, tokens, width]
  torch::Tensor forward(const torch::Tensor& input) {
    const auto sequences = input.size(0);
    const auto tokens = input.size(1);
    const auto heads =
        qkv(input).view({sequences, tokens, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto scores =
        torch::matmul(heads[0] / std::sqrt(static_cast<double>(kWidth / kHeads)), heads[1].transpose(-2, -1));
    const auto mixed = torch::matmul(torch::softmax(scores, -1), heads[2])
                           .transpose(1, 2)
                           .reshape({sequences, tokens, kWidth});
    const auto attended = norm1(input + out(mixed));
    return norm2(attended + contract(torch::relu(expand(attended))));
  }

  torch::nn::Linear qkv{nullptr}, out{nullptr}, expand{nullptr}, contract{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(Layer);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl() {
    for (std::int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), Layer()));
    }
  }

  torch::Tensor forward(torch::Tensor hidden) {
    for (auto& layer : layers) hidden = layer(hidden);
    return hidden;
  }

  std::vector<Layer> layers;
};
TORCH_MODULE(Transformer);

}  // namespace lockstep::bench
