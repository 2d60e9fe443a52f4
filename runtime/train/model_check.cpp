#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_set>

#include "common/error.h"
#include "runtime/torch_version.h"
#include "runtime/train/debug.h"
#include "runtime/train/operation_observer.h"
#include "runtime/train/rehearsal.h"

namespace lockstep {
namespace {

using torch::autograd::Node;

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

Graph walk(const torch::Tensor& loss) {
  Graph graph;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open = {loss.grad_fn().get()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const void* parameter = parameter_of(node)) graph.parameters.insert(parameter);
    if (name_contains(*node, "BatchNorm")) {
      if (const void* bias = bias_before(*node)) graph.needless_biases.insert(bias);
    }
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return graph;
}

bool any_autocast() {
  return std::any_of(torch_compat::kAutocastDevices.begin(), torch_compat::kAutocastDevices.end(),
                     torch_compat::autocast_enabled);
}

// Views and copies between types compute nothing.
bool computes(const train::Operation& operation) {
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

bool gives_float(const train::Operation& operation) {
  return std::any_of(operation.results.begin(), operation.results.end(), [](const c10::IValue& result) {
    return result.isTensor() && result.toTensor().defined() &&
           result.toTensor().scalar_type() == torch::kFloat;
  });
}

}  // namespace

std::string ModelFindings::text() const {
  std::string lines;
  for (const auto& name : biases_before_batch_norm)
    lines += fmt::format(
        "{}: the batch norm after it subtracts this bias again; build the layer without a bias\n", name);
  for (const auto& name : parameters_without_gradient)
    lines +=
        fmt::format("{}: backward does not reach this parameter; use it, freeze it or remove it\n", name);
  if (!float_operations.empty()) {
    std::vector<std::string> operations;
    for (const auto& [name, count] : float_operations)
      operations.push_back(fmt::format("{} ({})", name, count));
    lines += fmt::format("float under autocast: {}\n", fmt::join(operations, ", "));
  }
  return lines;
}

ModelFindings check_model(const torch::nn::Module& module, const std::function<torch::Tensor()>& forward) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  ModelFindings findings;
  torch::Tensor loss;
  {
    const train::OperationObserver observer([&](const train::Operation& operation) {
      if (operation.called_by_program && any_autocast() && computes(operation) && gives_float(operation))
        ++findings.float_operations[operation.name];
    });
    loss = forward();
  }
  if (!loss.defined() || !loss.requires_grad())
    fail_usage("check_model: the loss does not depend on any trained parameter; return the loss of a batch");
  const Graph graph = walk(loss);
  for (const auto& item : module.named_parameters()) {
    const void* parameter = item.value().unsafeGetTensorImpl();
    if (!item.value().requires_grad()) continue;
    if (graph.needless_biases.count(parameter) > 0) findings.biases_before_batch_norm.push_back(item.key());
    if (graph.parameters.count(parameter) == 0) findings.parameters_without_gradient.push_back(item.key());
  }
  return findings;
}

}  // namespace lockstep
