#include "runtime/ddp/replicas.h"

#include <ATen/MemoryOverlap.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/error.h"
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

}  // namespace lockstep::ddp
