#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "common/error.h"
#include "common/process.h"
#include "runtime/ddp/operation_observer.h"
#include "runtime/train/debug.h"
#include "runtime/train/rehearsal.h"

namespace lockstep {
namespace {

struct Kinds {
  bool nan = false;
  bool infinite = false;
  bool tensors = false;
};

void look_at(const torch::Tensor& tensor, Kinds& kinds) {
  if (!tensor.defined()) return;
  kinds.tensors = true;
  if (!tensor.is_floating_point() || tensor.is_sparse() || tensor.numel() == 0) return;
  kinds.nan = kinds.nan || tensor.isnan().any().item<bool>();
  kinds.infinite = kinds.infinite || tensor.isinf().any().item<bool>();
}

void look_at(const c10::IValue& value, Kinds& kinds) {
  if (value.isTensor()) look_at(value.toTensor(), kinds);
  if (value.isTensorList()) {
    for (const auto& tensor : value.toTensorVector()) look_at(tensor, kinds);
  }
  if (value.isDouble()) kinds.infinite = kinds.infinite || std::isinf(value.toDouble());
  if (value.isScalar() && value.toScalar().isFloatingPoint())
    kinds.infinite = kinds.infinite || std::isinf(value.toScalar().toDouble());
}

// Whether the operation wrote its result into this input.
bool changed_in_place(const c10::IValue& input, const ddp::Operation& operation) {
  if (!input.isTensor() || !std::string_view(operation.name).ends_with('_')) return false;
  return std::any_of(operation.results.begin(), operation.results.end(), [&](const c10::IValue& result) {
    return result.isTensor() && result.toTensor().is_same(input.toTensor());
  });
}

// The results of these are memory that has not been written yet.
bool makes_empty(std::string_view name) {
  return name.find("empty") != std::string_view::npos || name.find("resize") != std::string_view::npos;
}

// A view such as weight.t() begins at the same address.
const void* memory_of(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
}

// "encoder.0" for the parameter "encoder.0.weight".
std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "the model itself" : "module '" + parameter.substr(0, dot) + "'";
}

}  // namespace

void check_loss(const World& world, double loss, std::int64_t step,
                const std::function<std::string()>& find) {
  if (std::isfinite(loss)) return;
  const std::string where =
      find ? find() : "lower the learning rate, clip gradients, or call first_non_finite()";
  fail("the loss is {} in step {} on {}: {}", loss, step, rank_name(world.rank(), world.node_name()), where);
}

std::string first_non_finite(const torch::nn::Module& module, const std::function<void()>& forward) {
  const train::Rehearsal rehearsal(module);
  const torch::NoGradGuard no_grad;
  std::unordered_map<const void*, std::string> owners;
  for (const auto& named : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : named) {
      if (const void* memory = memory_of(item.value())) owners.emplace(memory, module_of(item.key()));
      Kinds kinds;
      look_at(item.value(), kinds);
      if (kinds.nan || kinds.infinite)
        return item.key() + (kinds.nan ? " has values that are not numbers" : " has infinite values");
    }
  }
  // What the last operation on this memory left there: inputs are seen after the operation, which may have changed
  // them in place.
  std::unordered_map<const void*, Kinds> left;
  std::string found;
  std::string last_module;
  const ddp::OperationObserver observer([&](const ddp::Operation& operation) {
    if (!operation.called_by_program || !found.empty()) return;
    std::string owner;
    for (const auto& input : operation.inputs) {
      if (!input.isTensor()) continue;
      const auto entry = owners.find(memory_of(input.toTensor()));
      if (entry != owners.end()) owner = last_module = entry->second;
    }
    Kinds before;
    for (const auto& input : operation.inputs) {
      if (!changed_in_place(input, operation)) {
        look_at(input, before);
        continue;
      }
      const Kinds& kinds = left[memory_of(input.toTensor())];
      before.tensors = true;
      before.nan = before.nan || kinds.nan;
      before.infinite = before.infinite || kinds.infinite;
    }
    Kinds after;
    for (const auto& result : operation.results) {
      Kinds kinds;
      if (!makes_empty(operation.name)) look_at(result, kinds);
      if (result.isTensor()) left[memory_of(result.toTensor())] = kinds;
      after.nan = after.nan || kinds.nan;
      after.infinite = after.infinite || kinds.infinite;
    }
    if (!before.tensors) return;
    // Masks of -infinity are common, so infinities that come from infinities are not reported.
    const bool makes_nan = after.nan && !before.nan;
    if (!makes_nan && !(after.infinite && !before.nan && !before.infinite)) return;
    std::string place = "before any module";
    if (!owner.empty()) {
      place = "in " + owner;
    } else if (!last_module.empty()) {
      place = "after " + last_module;
    }
    found = fmt::format("{} {} gives {}", operation.name, place,
                        makes_nan ? "values that are not numbers" : "infinite values");
  });
  forward();
  return found.empty() ? "no operation of the forward makes such a value; check the batch" : found;
}

}  // namespace lockstep
