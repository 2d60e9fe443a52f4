#include "runtime/ddp/replicas.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/process.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/seen_tensors.h"

namespace lockstep::ddp {
namespace {

std::string describe(const NamedTensor& parameter) {
  const auto& tensor = parameter.tensor;
  std::string text = fmt::format("'{}' {} [{}]", parameter.name, c10::toString(tensor.scalar_type()),
                                 fmt::join(tensor.sizes().vec(), ", "));
  if (tensor.layout() != torch::kStrided) {
    text += fmt::format(" ({})", c10::str(tensor.layout()));
  } else if (!tensor.is_contiguous()) {
    text += fmt::format(" with strides [{}]", fmt::join(tensor.strides().vec(), ", "));
  }
  if (!tensor.is_cpu()) text += " (on a GPU)";
  return text;
}

// The tensor's memory. Its element type is compared between ranks; a type that cannot be reduced becomes
// bytes.
comm::Buffer buffer_of(const torch::Tensor& tensor) {
  const comm::DataType type = exchanged_as(tensor.scalar_type()).value_or(comm::DataType::u8);
  return {tensor.data_ptr(), tensor.nbytes() / comm::size_of(type), type};
}

constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes that one thread hashes at a time

struct Piece {
  const std::byte* data;
  std::size_t bytes;
};

std::uint64_t hash_on_cpu(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Tensor> dense;  // keeps copies
  std::vector<Piece> pieces;
  for (const auto& parameter : parameters) {
    dense.push_back(parameter.tensor.is_non_overlapping_and_dense() ? parameter.tensor
                                                                    : parameter.tensor.contiguous());
    const auto* const data = static_cast<const std::byte*>(dense.back().data_ptr());
    const std::size_t bytes = dense.back().nbytes();
    for (std::size_t at = 0; at < bytes; at += kPiece)
      pieces.push_back({data + at, std::min(kPiece, bytes - at)});
  }
  std::vector<std::uint64_t> hashes(pieces.size());
  at::parallel_for(0, static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      hashes[i] = XXH3_64bits(pieces[i].data, pieces[i].bytes);
  });
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

// The elements' bits as whole numbers, whose sum does not depend on the order.
torch::Tensor bits_of(const torch::Tensor& tensor) {
  const torch::Tensor real = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  switch (real.element_size()) {
    case 8:
      return real.view(torch::kLong);
    case 4:
      return real.view(torch::kInt);
    default:
      return real.view(torch::kShort);
  }
}

std::uint64_t hash_on_device(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Tensor> sums;
  for (const auto& parameter : parameters)
    sums.push_back(bits_of(parameter.tensor.detach()).sum(torch::kLong));
  const torch::Tensor all = torch::stack(sums).cpu();
  return XXH3_64bits(all.data_ptr(), all.nbytes());
}

double largest_difference(const torch::Tensor& left, const torch::Tensor& right) {
  if (left.numel() == 0) return 0;
  const auto type = left.is_complex() ? torch::kComplexDouble : torch::kDouble;
  return (left.to(type) - right.to(type)).abs().max().item<double>();
}

}  // namespace

std::vector<NamedTensor> named_parameters_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  SeenTensors seen;
  for (const auto& entry : module.named_parameters()) {
    if (seen.add(entry.value())) parameters.push_back({entry.key(), entry.value()});
  }
  return parameters;
}

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  const torch::Device device = parameters.is_empty() ? torch::kCPU : parameters.front().value().device();
  const auto check = [device](const char* kind, const auto& entries) {
    for (const auto& entry : entries) {
      const torch::Device its = entry.value().device();
      check_supported(its, fmt::format("{} '{}'", kind, entry.key()));
      if (its != device) {
        fail_usage("{} '{}' is on {}, but the first parameter is on {}; put the whole model on one device",
                   kind, entry.key(), its.str(), device.str());
      }
    }
  };
  check("parameter", parameters);
  check("buffer", module.named_buffers());
  return device;
}

std::vector<NamedTensor> named_buffers_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> buffers;
  for (const auto& entry : module.named_buffers()) buffers.push_back({entry.key(), entry.value()});
  return buffers;
}

void refuse_unwritable(std::string_view kind, const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.layout() != torch::kStrided) {
      fail_usage(
          "{} '{}' is {}, which cannot be sent to other ranks; call to_dense() on it before registering it, or do not register it",
          kind, name, c10::str(tensor.layout()));
    }
    if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) continue;
    fail_usage("{} '{}' is expanded, so several of its elements share memory; register a clone() of it", kind,
               name);
  }
}

std::vector<comm::Property> properties_of(std::string_view kind, const std::vector<NamedTensor>& tensors) {
  std::vector<comm::Property> properties;
  for (const auto& tensor : tensors) {
    const bool frozen = kind == "parameter" && !tensor.tensor.requires_grad();
    properties.push_back(
        {fmt::format("{} {}", kind, properties.size()), describe(tensor) + (frozen ? " (frozen)" : "")});
  }
  return properties;
}

void broadcast_from(comm::Communicator& communicator, int root, const std::vector<NamedTensor>& tensors,
                    std::string_view kind) {
  if (communicator.size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> dense;  // these are sent
  std::vector<comm::WorkHandle> works;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
    works.push_back(
        communicator.broadcast(buffer_of(dense.back()), root, fmt::format("{} '{}'", kind, name)));
  }
  for (const auto& work : works) work->wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // detach(), so that autograd does not see the copy.
    if (!tensors[i].tensor.is_same(dense[i])) tensors[i].tensor.detach().copy_(dense[i]);
  }
}

ReplicaCheck::ReplicaCheck(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
                           std::int64_t every)
    : host_communicator_(host_communicator), device_communicator_(device_communicator), every_(every) {
  if (every < 0) fail_usage("check_replicas_every is {}; it must be 0 (never) or more", every);
}

void ReplicaCheck::compare(const std::vector<NamedTensor>& parameters, std::int64_t step) {
  if (every_ == 0 || host_communicator_.size() == 1 || ++steps_ % every_ != 0) return;
  const torch::NoGradGuard no_grad;
  std::uint64_t hash =
      parameters.front().tensor.is_cpu() ? hash_on_cpu(parameters) : hash_on_device(parameters);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(host_communicator_.size()));
  host_communicator_.all_gather({&hash, 1, comm::DataType::i64}, all.data(), "the hashes of the parameters")
      ->wait();
  const auto differs = [&](std::uint64_t other) { return other != all.front(); };
  const auto other = std::find_if(all.begin(), all.end(), differs);
  if (other == all.end()) return;
  const auto ranks = std::count_if(all.begin(), all.end(), differs);
  fail(
      "the ranks' models have drifted apart before step {}: {}{}; such ranks have other processors or numbers of threads, or the program changes parameters on some ranks only, for example by an optimizer step without a synchronised backward; check_replicas_every = 0 trains on without a comparison",
      step, describe(static_cast<int>(other - all.begin()), largest_difference_from_rank_0(parameters)),
      ranks == 1 ? "" : fmt::format("; {} ranks differ from rank 0", ranks));
}

// "'layer.weight' by up to 1e-09"
std::string ReplicaCheck::largest_difference_from_rank_0(const std::vector<NamedTensor>& parameters) {
  double largest = 0;
  std::string difference = "bits that make no difference";  // such as -0 and 0
  for (const auto& [name, tensor] : parameters) {
    const torch::Tensor first = tensor.detach().clone();
    broadcast_from(device_communicator_, 0, {{name, first}}, "parameter to compare");
    const double mine = largest_difference(tensor.detach(), first);
    if (!(mine <= largest)) {  // it may be NaN
      largest = mine;
      difference = fmt::format("'{}' by up to {:.3g}", name, mine);
    }
  }
  return difference;
}

// The same text on all ranks.
std::string ReplicaCheck::describe(int rank, const std::string& difference) {
  const std::string me = rank_name(host_communicator_.rank(), host_communicator_.place().node_name);
  const std::string label = "the rank whose parameters differ";
  const std::string first = comm::broadcast_text(host_communicator_, me, 0, label);
  return comm::broadcast_text(host_communicator_,
                              fmt::format("{} and {} differ in {}", me, first, difference), rank, label);
}

}  // namespace lockstep::ddp
