// Models and helpers for the tests of DistributedDataParallel.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/ddp/distributed_data_parallel.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {

/// Several layers. The weight of `first` is used twice, so its gradient has two sources. Layers are
/// registered in another order than used, so gradients do not arrive in reverse order of registration.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 8) {
    last = register_module("last", torch::nn::Linear(width, width));
    first = register_module("first", torch::nn::Linear(6, width));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    middle = register_module("middle", torch::nn::Linear(width, width));
    out_bias = register_parameter("out_bias", torch::randn({6}));
    to(torch::kDouble);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    auto hidden = torch::tanh(first(input));
    hidden = torch::tanh(norm(middle(hidden))) + hidden;
    hidden = torch::tanh(last(hidden));
    return torch::matmul(hidden, first->weight) + out_bias;
  }

  torch::nn::Linear first = nullptr;
  torch::nn::Linear middle = nullptr;
  torch::nn::Linear last = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::Tensor out_bias;
};
TORCH_MODULE(Net);

/// Options with small buckets, so that the models here have several.
inline DistributedDataParallelOptions small_buckets() {
  DistributedDataParallelOptions options;
  options.first_bucket_bytes = 256;
  options.bucket_cap_mb = 700.0 / (1 << 20);
  return options;
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

inline void copy_parameters(const torch::nn::Module& from, torch::nn::Module& into) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.parameters().size(); ++i) into.parameters()[i].copy_(from.parameters()[i]);
}

/// A copy with the same parameters, for training in one process.
inline Net copy_of(const Net& net) {
  Net copy;
  copy_parameters(*net, *copy);
  return copy;
}

inline void set_gradients_to_none(torch::nn::Module& net) {
  for (auto& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor();
}

/// The same rows on every rank.
inline torch::Tensor rows(std::int64_t count, std::uint64_t seed, std::int64_t width = 6) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn({count, width}, generator, torch::kDouble);
}

/// This rank's part of the rows of all ranks.
inline torch::Tensor my_part(const torch::Tensor& rows_of_all) {
  return rows_of_all.chunk(world().size())[world().rank()];
}

inline torch::Tensor sum_of_squares(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::square(output - target).sum();
}

/// The largest difference between two models' gradients, relative to the largest gradient.
inline double gradient_difference(torch::nn::Module& left, torch::nn::Module& right) {
  double difference = 0;
  double largest = 0;
  const auto ours = left.parameters();
  const auto theirs = right.parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!ours[i].requires_grad()) continue;
    difference = std::max(difference, (ours[i].grad() - theirs[i].grad()).abs().max().item<double>());
    largest = std::max(largest, theirs[i].grad().abs().max().item<double>());
  }
  return difference / largest;
}

/// Whether a tensor has the same bits on all ranks.
inline bool same_bits_everywhere(const torch::Tensor& tensor) {
  const auto mine = tensor.detach().contiguous();
  const auto bytes = static_cast<std::size_t>(mine.nbytes());
  std::vector<std::uint8_t> first(bytes);
  std::memcpy(first.data(), mine.data_ptr(), bytes);
  world().communicator().broadcast({first.data(), bytes, comm::DataType::u8}, 0, "bits to compare")->wait();
  return !any_rank(std::memcmp(first.data(), mine.data_ptr(), bytes) != 0);
}

}  // namespace lockstep::testing
