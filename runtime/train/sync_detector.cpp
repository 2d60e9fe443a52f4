#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "runtime/ddp/operation_observer.h"
#include "runtime/profile/operator_faults.h"
#include "runtime/train/debug.h"

namespace lockstep {
namespace {

// An inner operation of the one that the program called has waited.
thread_local bool waited = false;

}  // namespace

SyncDetector::SyncDetector(torch::DeviceType device)
    : device_(device),
      observer_(std::make_unique<ddp::OperationObserver>(
          [this](const ddp::Operation& operation) { see(operation); })) {
  waited = false;
}

SyncDetector::~SyncDetector() = default;

void SyncDetector::see(const ddp::Operation& operation) {
  waited = waited || profile::waits_for_device(operation.name, operation.inputs, device_);
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
