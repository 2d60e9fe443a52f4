#include "runtime/ddp/model_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "runtime/profile/operator_faults.h"
#include "runtime/torch_version.h"

namespace lockstep {
namespace ddp {
namespace {

using torch::autograd::Node;

constexpr std::int64_t kSmallSize = 64;    // smaller dimensions cost little
constexpr std::int64_t kLargeSize = 4096;  // from here on multiples of 64 are best
constexpr std::int64_t kFewSamples = 16;   // for the statistics of a batch norm

bool name_contains(const Node& node, std::string_view text) {
  return node.name().find(text) != std::string::npos;
}

const void* parameter_of(const Node* node) {
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
  return leaf == nullptr ? nullptr : leaf->variable.unsafeGetTensorImpl();
}

const Node* next(const Node& node, std::size_t input) {
  return input < node.num_outputs() ? node.next_edge(input).function.get() : nullptr;
}

// The bias of the convolution or linear layer whose result this batch norm gets.
const void* bias_before(const Node& batch_norm) {
  const Node* node = next(batch_norm, 0);
  while (node != nullptr && (name_contains(*node, "View") || name_contains(*node, "ToCopy")))
    node = next(*node, 0);
  if (node == nullptr) return nullptr;
  std::size_t input = 0;
  if (name_contains(*node, "Convolution")) {
    input = 2;  // after input and weight
  } else if (!name_contains(*node, "Addmm")) {
    return nullptr;
  }
  const Node* bias = next(*node, input);
  while (bias != nullptr && name_contains(*bias, "ToCopy")) bias = next(*bias, 0);  // autocast's
  return parameter_of(bias);
}

struct Graph {
  std::unordered_set<const void*> parameters;
  std::unordered_set<const void*> needless_biases;
};

Graph walk(const std::vector<torch::Tensor>& results) {
  Graph graph;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  for (const auto& result : results) {
    if (result.defined() && result.requires_grad()) open.push_back(result.grad_fn().get());
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (name_contains(*node, "BatchNorm")) {
      if (const void* bias = bias_before(*node)) graph.needless_biases.insert(bias);
    }
    for (const auto& edge : node->next_edges()) {
      const Node* input = edge.function.get();
      if (const void* parameter = parameter_of(input)) {
        graph.parameters.insert(parameter);
      } else {
        open.push_back(input);
      }
    }
  }
  return graph;
}

bool any_autocast() {
  return std::any_of(torch_compat::kAutocastDevices.begin(), torch_compat::kAutocastDevices.end(),
                     torch_compat::autocast_enabled);
}

// Views and copies between types compute nothing.
bool computes(const Operation& operation) {
  const std::string_view name = operation.name;
  if (name == "aten::to" || name == "aten::_to_copy" || name == "aten::copy_") return false;
  const void* memory = nullptr;
  for (const auto& input : operation.inputs) {
    if (!input.isTensor() || !input.toTensor().defined() || !input.toTensor().has_storage()) continue;
    memory = input.toTensor().storage().data();
    break;
  }
  if (memory == nullptr) return false;  // makes a tensor of nothing, such as zeros()
  const auto& results = operation.results;
  return results.empty() || !results[0].isTensor() || !results[0].toTensor().has_storage() ||
         results[0].toTensor().storage().data() != memory || name.back() == '_';
}

bool gives_float(const Operation& operation) {
  return std::any_of(operation.results.begin(), operation.results.end(), [](const c10::IValue& result) {
    return result.isTensor() && result.toTensor().defined() &&
           result.toTensor().scalar_type() == torch::kFloat;
  });
}

torch::Tensor tensor_at(const std::vector<c10::IValue>& values, std::size_t at) {
  return at < values.size() && values[at].isTensor() ? values[at].toTensor() : torch::Tensor();
}

}  // namespace

FirstForward::FirstForward(const torch::nn::Module& module)
    : module_(module), observer_([this](const Operation& operation) { see(operation); }) {
  for (const auto& item : module.named_parameters())
    names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
}

void FirstForward::see(const Operation& operation) {
  if (!operation.called_by_program) return;
  const bool autocast = any_autocast();
  autocast_ = autocast_ || autocast;
  if (autocast && computes(operation) && gives_float(operation)) ++findings_.float_operations[operation.name];
  see_batch_norm(operation);
  if (const auto sum = profile::half_sum(operation.name, operation.inputs, operation.results))
    ++half_sums_[*sum];
}

void FirstForward::see_batch_norm(const Operation& operation) {
  if (operation.name != std::string_view("aten::batch_norm") || operation.inputs.size() < 6) return;
  const torch::Tensor input = tensor_at(operation.inputs, 0);
  if (!operation.inputs[5].isBool() || !operation.inputs[5].toBool() || !input.defined() ||
      input.size(0) >= kFewSamples) {
    return;
  }
  const torch::Tensor weight = tensor_at(operation.inputs, 1);
  const auto name = weight.defined() ? names_.find(weight.unsafeGetTensorImpl()) : names_.end();
  findings_.others.push_back(fmt::format(
      "{}: the statistics of this batch norm are those of {} sample{}, so they are noisy: use larger micro-batches, SyncBatchNorm over the ranks, or GroupNorm if you accumulate",
      name == names_.end() ? "a batch norm" : name->second, input.size(0), input.size(0) == 1 ? "" : "s"));
}

// One line for each size, because the layers of a model repeat it.
void FirstForward::look_at_sizes() {
  std::map<std::int64_t, std::vector<std::string>> odd;
  for (const auto& item : module_.named_parameters()) {
    const auto sizes = item.value().sizes();
    for (std::size_t i = 0; sizes.size() >= 2 && i < 2; ++i) {
      if (sizes[i] < kSmallSize || sizes[i] % 8 == 0) continue;
      auto& names = odd[sizes[i]];
      if (names.empty() || names.back() != item.key()) names.push_back(item.key());
    }
  }
  for (const auto& [size, names] : odd) {
    const std::int64_t unit = size >= kLargeSize ? 64 : 8;
    findings_.others.push_back(
        fmt::format("{}{}: a dimension of {} is not a multiple of 8, which slows matrix products: make it {}",
                    names.front(), names.size() == 1 ? "" : fmt::format(" and {} more", names.size() - 1),
                    size, (size + unit - 1) / unit * unit));
  }
}

void FirstForward::look_at_graph(const std::vector<torch::Tensor>& results,
                                 const DistributedDataParallelOptions& options) {
  const Graph graph = walk(results);
  if (graph.parameters.empty()) return;
  for (const auto& item : module_.named_parameters()) {
    const void* parameter = item.value().unsafeGetTensorImpl();
    if (!item.value().requires_grad()) continue;
    if (graph.needless_biases.count(parameter) > 0) findings_.biases_before_batch_norm.push_back(item.key());
    if (graph.parameters.count(parameter) == 0 && !options.find_unused_parameters && !options.static_graph)
      findings_.parameters_without_gradient.push_back(item.key());
  }
}

ModelFindings FirstForward::findings(const std::vector<torch::Tensor>& results,
                                     const DistributedDataParallelOptions& options) {
  look_at_sizes();
  look_at_graph(results, options);
  for (const auto& [what, count] : half_sums_) {
    findings_.others.push_back(
        fmt::format("{}{}: the result is rounded to 3 digits or less; sum in float (sum(torch::kFloat))",
                    what, count == 1 ? "" : fmt::format(" ({} times)", count)));
  }
  return findings_;
}

}  // namespace ddp

std::string ModelFindings::text() const {
  std::string lines;
  for (const auto& name : biases_before_batch_norm)
    lines += fmt::format(
        "{}: the batch norm after it subtracts this bias again; build the layer without a bias\n", name);
  for (const auto& name : parameters_without_gradient)
    lines +=
        fmt::format("{}: backward does not reach this parameter; use it, freeze it or remove it\n", name);
  for (const auto& line : others) lines += line + '\n';
  if (!float_operations.empty()) {
    std::vector<std::string> operations;
    for (const auto& [name, count] : float_operations)
      operations.push_back(fmt::format("{} ({})", name, count));
    lines += fmt::format("float under autocast: {}\n", fmt::join(operations, ", "));
  }
  return lines;
}

}  // namespace lockstep
