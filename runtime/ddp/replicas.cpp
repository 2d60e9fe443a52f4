#include "runtime/ddp/replicas.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "common/error.h"
#include "runtime/ddp/sparse_gradient.h"

namespace lockstep::ddp {
namespace {

std::string describe(const NamedTensor& parameter) {
  const auto& tensor = parameter.tensor;
  std::string text = fmt::format("'{}' {} [{}]", parameter.name, c10::toString(tensor.scalar_type()),
                                 fmt::join(tensor.sizes().vec(), ", "));
  if (!tensor.is_contiguous())
    text += fmt::format(" with strides [{}]", fmt::join(tensor.strides().vec(), ", "));
  if (!tensor.requires_grad()) text += " (frozen)";
  if (tensor.is_cuda()) text += " (on a GPU)";
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

std::string broadcast_text(comm::Communicator& communicator, std::string text, int root) {
  auto bytes = static_cast<std::int64_t>(text.size());
  communicator.broadcast({&bytes, 1, comm::DataType::i64}, root, "the model's description")->wait();
  text.resize(static_cast<std::size_t>(bytes));
  communicator.broadcast({text.data(), text.size(), comm::DataType::u8}, root, "the model's description")
      ->wait();
  return text;
}

std::string line_or_nothing(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? lines[i] : "no such parameter";
}

}  // namespace

std::vector<NamedTensor> named_parameters_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  std::unordered_set<const void*> seen;
  const auto sparse = sparse_parameters_of(module);
  for (const auto& entry : module.named_parameters()) {
    const void* const identity = entry.value().unsafeGetTensorImpl();
    if (seen.insert(identity).second)
      parameters.push_back({entry.key(), entry.value(), sparse.contains(identity)});
  }
  return parameters;
}

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.named_parameters();
  const torch::Device device = parameters.is_empty() ? torch::kCPU : parameters.front().value().device();
  const auto check = [device](const char* kind, const auto& entries) {
    for (const auto& entry : entries) {
      const torch::Device its = entry.value().device();
      if (!its.is_cpu() && !its.is_cuda()) {
        fail_usage("{} '{}' is on {}; a model is on the CPU or on a CUDA device", kind, entry.key(),
                   its.str());
      }
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

void check_replicas_alike(comm::Communicator& communicator, const std::vector<NamedTensor>& parameters,
                          const std::string& choices) {
  std::string mine;
  for (const auto& parameter : parameters) mine += describe(parameter) + "\n";
  mine += choices + "\n";
  const auto my_lines = split_lines(mine);
  const auto first_lines = split_lines(broadcast_text(communicator, mine, 0));

  const std::size_t longest = std::max(my_lines.size(), first_lines.size());
  std::int64_t differs_at = -1;
  for (std::size_t i = 0; i < longest && differs_at < 0; ++i) {
    if (line_or_nothing(my_lines, i) != line_or_nothing(first_lines, i))
      differs_at = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> everyone(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&differs_at, 1, comm::DataType::i64}, everyone.data(), "the models' comparison")
      ->wait();

  const auto other = std::find_if(everyone.begin(), everyone.end(), [](std::int64_t at) { return at >= 0; });
  if (other == everyone.end()) return;
  const int rank = static_cast<int>(other - everyone.begin());
  const auto at = static_cast<std::size_t>(*other);
  const std::string theirs = broadcast_text(communicator, line_or_nothing(my_lines, at), rank);
  fail_usage(
      "the ranks' models differ: parameter {} is {} on rank 0 and {} on rank {}; build the same model with "
      "the same options on every rank",
      at, line_or_nothing(first_lines, at), theirs, rank);
}

void broadcast_from(comm::Communicator& communicator, int root, const std::vector<torch::Tensor>& tensors,
                    std::string_view label) {
  if (communicator.size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> dense;  // what really travels
  std::vector<comm::WorkHandle> works;
  for (const auto& tensor : tensors) {
    dense.push_back(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
    const comm::Buffer buffer{dense.back().data_ptr(), dense.back().nbytes(), comm::DataType::u8};
    works.push_back(communicator.broadcast(buffer, root, label));
  }
  for (const auto& work : works) work->wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // copy_ into the tensor's data, so that autograd does not see it.
    if (!tensors[i].is_same(dense[i])) tensors[i].detach().copy_(dense[i]);
  }
}

}  // namespace lockstep::ddp
