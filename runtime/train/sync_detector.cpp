#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "runtime/ddp/operation_observer.h"
#include "runtime/train/debug.h"

namespace lockstep {
namespace {

// Operations whose result's value or shape the host must know. Operations that call these are found through
// them.
const std::set<std::string> kWaiting = {"aten::_local_scalar_dense",
                                        "aten::nonzero",
                                        "aten::equal",
                                        "aten::_unique",
                                        "aten::_unique2",
                                        "aten::unique_dim",
                                        "aten::bincount",
                                        "aten::unique_consecutive",
                                        "aten::masked_select"};

// An inner operation of the one that the program called has waited.
thread_local bool waited = false;

}  // namespace

namespace train {

bool waits_for_device(const std::string& operation, c10::ArrayRef<c10::IValue> inputs,
                      torch::DeviceType type) {
  const auto on_device = [type](const c10::IValue& input) {
    return input.isTensor() && input.toTensor().defined() && input.toTensor().device().type() == type;
  };
  if (operation == "aten::copy_") {  // (into, from, non_blocking)
    if (inputs.size() < 3 || (inputs[2].isBool() && inputs[2].toBool())) return false;
    return type != torch::kCPU && on_device(inputs[0]) != on_device(inputs[1]);
  }
  return kWaiting.contains(operation) && std::any_of(inputs.begin(), inputs.end(), on_device);
}

}  // namespace train

SyncDetector::SyncDetector(torch::DeviceType device)
    : device_(device),
      observer_(std::make_unique<ddp::OperationObserver>(
          [this](const ddp::Operation& operation) { see(operation); })) {
  waited = false;
}

SyncDetector::~SyncDetector() = default;

void SyncDetector::see(const ddp::Operation& operation) {
  waited = waited || train::waits_for_device(operation.name, operation.inputs, device_);
  if (!operation.called_by_program) return;
  if (waited) ++calls_[operation.name];
  waited = false;
}

std::string SyncDetector::text() const {
  if (calls_.empty()) return "no synchronising call";
  std::vector<std::string> parts;
  for (const auto& [name, count] : calls_) {
    parts.push_back(count == 1 ? fmt::format("{} (once)", name) : fmt::format("{} ({} times)", name, count));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace lockstep
