#include "runtime/profile/operators.h"

#include <ATen/record_function.h>
#ifdef LOCKSTEP_WITH_NCCL
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <memory>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "runtime/profile/accelerator.h"
#include "runtime/profile/spans.h"

namespace lockstep::profile {
namespace {

struct Begin : at::ObserverContext {
  std::uint64_t ns = monotonic_ns();
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& /*function*/) {
  return std::make_unique<Begin>();
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr || !tracing() || function.isAsync()) return;  // async: it ends in another thread
  add_span({.kind = SpanKind::operation,
            .name = function.name(),
            .begin_ns = static_cast<Begin*>(context)->ns,
            .end_ns = monotonic_ns()});
}

}  // namespace

void trace_operators(bool on) {
  static std::optional<at::CallbackHandle> handle;
  if (on && !handle) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end));
  } else if (!on && handle) {
    at::removeCallback(*std::exchange(handle, std::nullopt));
  }
}

std::uint64_t device_bytes([[maybe_unused]] int device) {
#ifdef LOCKSTEP_WITH_NCCL
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(accelerator().value_or(c10::kCUDA)));
  if (allocator == nullptr || !allocator->initialized()) return 0;
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<std::uint64_t>(
      allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[kAll].current);
#else
  return 0;
#endif
}

}  // namespace lockstep::profile
