#include "runtime/ddp/replicas.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/seen_tensors.h"
#include "runtime/ddp/sparse_gradient.h"

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
  if (parameter.sparse) text += " (sparse gradient)";
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// A line is "what\tvalue"; a missing one is "\tmissing".
std::string line_or_missing(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? lines[i] : "\tmissing";
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
  const auto sparse = sparse_parameters_of(module);
  for (const auto& entry : module.named_parameters()) {
    if (seen.add(entry.value()))
      parameters.push_back(
          {entry.key(), entry.value(), sparse.contains(entry.value().unsafeGetTensorImpl())});
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
  for (const auto& entry : module.named_buffers()) buffers.push_back({entry.key(), entry.value(), false});
  return buffers;
}

void refuse_unwritable(std::string_view kind, const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor, sparse] : tensors) {
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

std::vector<Property> properties_of(std::string_view kind, const std::vector<NamedTensor>& tensors) {
  std::vector<Property> properties;
  for (const auto& tensor : tensors) {
    const bool frozen = kind == "parameter" && !tensor.tensor.requires_grad();
    properties.push_back(
        {fmt::format("{} {}", kind, properties.size()), describe(tensor) + (frozen ? " (frozen)" : "")});
  }
  return properties;
}

void check_alike(comm::Communicator& communicator, const std::vector<Property>& properties,
                 std::string_view label, std::string_view remedy) {
  std::string mine;
  for (const auto& property : properties) mine += property.what + '\t' + property.value + '\n';
  const auto my_lines = split_lines(mine);
  const auto first_lines = split_lines(broadcast_text(communicator, mine, 0, label));

  const std::size_t longest = std::max(my_lines.size(), first_lines.size());
  std::int64_t differs_at = -1;
  for (std::size_t i = 0; i < longest && differs_at < 0; ++i) {
    if (line_or_missing(my_lines, i) != line_or_missing(first_lines, i))
      differs_at = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> everyone(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&differs_at, 1, comm::DataType::i64}, everyone.data(), label)->wait();

  const auto other = std::find_if(everyone.begin(), everyone.end(), [](std::int64_t at) { return at >= 0; });
  if (other == everyone.end()) return;
  const int rank = static_cast<int>(other - everyone.begin());
  const auto at = static_cast<std::size_t>(*other);
  const std::string first = line_or_missing(first_lines, at);
  const std::string theirs = broadcast_text(communicator, line_or_missing(my_lines, at), rank, label);
  const auto tab = [](const std::string& line) { return line.find('\t'); };
  fail_usage("the ranks' models differ: {} is {} on rank 0 and {} on rank {}; {}",
             tab(first) > 0 ? first.substr(0, tab(first)) : theirs.substr(0, tab(theirs)),
             first.substr(tab(first) + 1), theirs.substr(tab(theirs) + 1), rank, remedy);
}

std::string broadcast_text(comm::Communicator& communicator, std::string text, int root,
                           std::string_view label) {
  auto bytes = static_cast<std::int64_t>(text.size());
  communicator.broadcast({&bytes, 1, comm::DataType::i64}, root, label)->wait();
  text.resize(static_cast<std::size_t>(bytes));
  communicator.broadcast({text.data(), text.size(), comm::DataType::u8}, root, label)->wait();
  return text;
}

void broadcast_from(comm::Communicator& communicator, int root, const std::vector<NamedTensor>& tensors,
                    std::string_view kind) {
  if (communicator.size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> dense;  // these are sent
  std::vector<comm::WorkHandle> works;
  for (const auto& [name, tensor, sparse] : tensors) {
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
