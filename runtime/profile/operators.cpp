#include "runtime/profile/operators.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#ifdef LOCKSTEP_WITH_NCCL
#include <c10/core/CachingDeviceAllocator.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <torch/csrc/autograd/profiler_kineto.h>
#endif

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "runtime/profile/accelerator.h"
#include "runtime/profile/module_owners.h"
#include "runtime/profile/operator_faults.h"
#include "runtime/profile/profile_summary.h"
#include "runtime/profile/spans.h"

namespace lockstep::profile {
namespace {

// Numbers of the nodes of backward that operators of a forward made: [first, end), by the thread of the forward.
struct Nodes {
  std::uint64_t end = 0;
  int module = -1;
};

struct Models {
  std::vector<const torch::nn::Module*> all;
  ModuleOwners modules;  // while tracing
  ConvolutionShapes convolutions;
  c10::DeviceType device = c10::DeviceType::CUDA;
  bool shapes = false;  // follow the names of operators
  bool tunes = false;   // cuDNN measures its algorithms
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Nodes> nodes;
  std::atomic<std::uint64_t> nodes_run = 0;
};

Models& models() {
  static auto* const one = new Models;  // never destroyed: threads may outlive main
  return *one;
}

struct ThreadState {
  int depth = 0;  // of operators
  int nodes = 0;  // of backward, one in another if it computes activations again
  int module = -1;
  std::uint64_t module_until = 0;  // holds until a node of backward runs
  bool waited = false;             // the outermost operator, or one that it called
  std::uint64_t copied = 0;        // by them, from the host to a device
};
thread_local ThreadState state;

struct Begin : at::ObserverContext {
  bool is_operator = false;
  ModelPart part = ModelPart::none;
  int module = -1;
  int module_before = -1;  // of a node: that of the operators before it
  std::uint64_t first_node = 0;
  std::vector<c10::IValue> inputs;  // of an outermost operator; LibTorch has them at the start only
  std::string shapes;
  std::uint64_t ns = 0;
};

Values inputs_of(const at::RecordFunction& function) {
  return {function.inputs().data(), function.inputs().size()};
}

void begin_outermost(const at::RecordFunction& function, Begin& context) {
  const Values inputs = inputs_of(function);
  context.inputs.assign(inputs.begin(), inputs.end());
  state.waited = false;
  state.copied = 0;
  if (!at::GradMode::is_enabled()) {
    if (state.nodes > 0) {
      context.part = ModelPart::backward;
      context.module = state.module;
    }
    return;
  }
  const std::uint64_t nodes_run = models().nodes_run.load(std::memory_order_relaxed);
  if (state.module_until != nodes_run) state.module = -1;
  const int owner = models().modules.owner_of_any(inputs);
  if (owner >= 0) {
    state.module = owner;
    state.module_until = nodes_run;
  }
  if (state.module < 0) return;
  context.part = ModelPart::forward;
  context.module = state.module;
  context.first_node = at::sequence_number::peek();
}

void begin_node(const at::RecordFunction& function, Begin& context) {
  ++state.nodes;
  models().nodes_run.fetch_add(1, std::memory_order_relaxed);
  context.part = ModelPart::node;
  const std::scoped_lock lock(models().mutex);
  const auto& nodes = models().nodes;
  auto made = nodes.upper_bound({function.forwardThreadId(), static_cast<std::uint64_t>(function.seqNr())});
  if (made == nodes.begin()) return;
  --made;
  if (made->first.first == function.forwardThreadId() &&
      static_cast<std::uint64_t>(function.seqNr()) < made->second.end) {
    context.module = made->second.module;
  }
}

std::string shapes_of(Values inputs) {
  std::string shapes;
  for (const c10::IValue& input : inputs) {
    if (input.isTensor() && input.toTensor().defined())
      shapes += fmt::format(" [{}]", fmt::join(input.toTensor().sizes().vec(), ", "));
  }
  return shapes;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto context = std::make_unique<Begin>();
  const std::string_view name = function.name();
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    begin_node(function, *context);
    context->module_before = std::exchange(state.module, context->module);
  } else if (function.scope() == at::RecordScope::FUNCTION && name != "aten::_backward" &&
             !name.starts_with("autograd::engine::")) {
    context->is_operator = true;
    if (state.depth++ == 0) begin_outermost(function, *context);
    state.waited = state.waited || waits_for_device(name, inputs_of(function), models().device);
    if (models().tunes && models().convolutions.is_new(name, inputs_of(function)))
      add_fault(OperationFault::tuned_again, function.name());
    state.copied += bytes_to_device(name, inputs_of(function));
    if (models().shapes) context->shapes = shapes_of(inputs_of(function));
  }
  context->ns = monotonic_ns();
  return context;
}

std::uint64_t made_bytes(const Begin& context, const std::vector<c10::IValue>& results) {
  std::uint64_t bytes = 0;
  for (const c10::IValue& result : results) {
    const c10::StorageImpl* storage = storage_of(result);
    const bool view = std::any_of(context.inputs.begin(), context.inputs.end(),
                                  [&](const c10::IValue& input) { return storage_of(input) == storage; });
    if (storage != nullptr && !view) bytes += storage->nbytes();
  }
  return bytes;
}

std::uint64_t end_outermost(const at::RecordFunction& function, const Begin& context) {
  if (context.part == ModelPart::forward) {
    const std::uint64_t next = at::sequence_number::peek();
    const std::scoped_lock lock(models().mutex);
    if (next > context.first_node)
      models().nodes[{function.threadId(), context.first_node}] = {.end = next, .module = context.module};
  }
  if (state.waited) add_fault(OperationFault::device_wait, function.name());
  if (context.part == ModelPart::none) return 0;
  if (state.copied > 0) add_fault(OperationFault::host_copy, function.name(), state.copied);
  if (const auto sum = half_sum(function.name(), context.inputs, function.outputs()))
    add_fault(OperationFault::half_sum, *sum);
  return made_bytes(context, function.outputs());
}

void end(const at::RecordFunction& function, at::ObserverContext* observed) {
  if (observed == nullptr) return;
  const std::uint64_t now = monotonic_ns();
  auto& context = *static_cast<Begin*>(observed);
  std::uint64_t bytes = 0;
  if (context.part == ModelPart::node) {
    --state.nodes;
    state.module = context.module_before;
  } else if (context.is_operator && --state.depth == 0) {
    bytes = end_outermost(function, context);
  }
  if (!tracing() || function.isAsync()) return;  // async: it ends in another thread
  add_span({.kind = SpanKind::operation,
            .name = function.name() + context.shapes,
            .begin_ns = context.ns,
            .end_ns = now,
            .part = context.part,
            .module = context.module,
            .bytes = bytes});
}

}  // namespace

void add_model(const torch::nn::Module& model) {
  models().all.push_back(&model);
}

void remove_model(const torch::nn::Module& model) {
  std::erase(models().all, &model);
}

void trace_operators(bool on, bool shapes) {
  static std::optional<at::CallbackHandle> handle;
  if (on && !handle) {
    models().modules = {};
    int number = 0;
    for (const torch::nn::Module* const model : models().all)
      models().modules.add(*model, ++number == 1 ? "" : fmt::format("{}:", number));
    models().device = accelerator().value_or(c10::DeviceType::CUDA);
    models().shapes = shapes;
    models().tunes = accelerator() && at::globalContext().benchmarkCuDNN();
    models().nodes.clear();
    set_modules(models().modules.names());
    handle =
        at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end).needsInputs(true).needsOutputs(true));
  } else if (!on && handle) {
    at::removeCallback(*std::exchange(handle, std::nullopt));
  }
}

#ifdef LOCKSTEP_WITH_NCCL
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::optional<std::uint64_t> recording_since;  // monotonic

void begin_recording() {
  // Kineto prints a line for each start and stop. It reads this when it is used first.
  ::setenv("KINETO_LOG_LEVEL", "99", 0);
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CUDA};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

// Kineto's times are those of the system's clock.
std::int64_t unix_minus_monotonic_ns() {
  const auto unix = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(unix).count() -
         static_cast<std::int64_t>(monotonic_ns());
}

void end_recording(std::uint64_t since) {
  const auto result = kineto::disableProfiler();
  const std::int64_t offset = unix_minus_monotonic_ns();
  for (const kineto::KinetoEvent& event : result->events()) {
    if (event.deviceType() == c10::kCPU) continue;  // the calls of CUDA's library
    const auto begin_ns = static_cast<std::uint64_t>(static_cast<std::int64_t>(event.startNs()) - offset);
    if (begin_ns < since) continue;
    Span span{.kind = SpanKind::device,
              .name = event.name(),
              .begin_ns = begin_ns,
              .end_ns = begin_ns + event.durationNs()};
    span.thread = static_cast<int>(event.deviceResourceId());
    span.work = device_work_of(span.name);
    add_span(std::move(span));
  }
}

// Null before its first use.
c10::DeviceAllocator* device_allocator() {
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(accelerator().value_or(c10::kCUDA)));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

std::optional<c10::CachingDeviceAllocator::DeviceStats> allocator_stats(int device) {
  auto* const allocator = device_allocator();
  if (allocator == nullptr) return std::nullopt;
  return allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device));
}

const auto& total(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

std::uint64_t current(const c10::CachingAllocator::StatArray& stats) {
  return static_cast<std::uint64_t>(total(stats).current);
}

}  // namespace

bool can_trace_device() {
  return accelerator() == c10::DeviceType::CUDA;
}

void trace_device(bool on) {
  try {
    if (on) {
      if (!recording_since) begin_recording();
      recording_since = monotonic_ns();
    } else if (const auto since = std::exchange(recording_since, std::nullopt)) {
      end_recording(*since);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: the profile has no kernels of the GPU: LibTorch cannot record them: {}\n",
               error.what());
  }
}

std::uint64_t device_bytes(int device) {
  const auto stats = allocator_stats(device);
  return stats ? current(stats->allocated_bytes) : 0;
}

AllocatorState allocator_state(int device) {
  const auto stats = allocator_stats(device);
  if (!stats) return {};
  return {.retries = static_cast<std::uint64_t>(stats->num_alloc_retries),
          .unused_bytes = current(stats->reserved_bytes) - current(stats->allocated_bytes)};
}

std::optional<DeviceMemory> device_memory(int device) {
  const auto stats = allocator_stats(device);
  if (!stats) return std::nullopt;
  const std::uint64_t used = current(stats->allocated_bytes);
  const std::uint64_t free = device_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(device)).first;
  return DeviceMemory{.used = used,
                      .peak = static_cast<std::uint64_t>(total(stats->allocated_bytes).peak),
                      .left = free + current(stats->reserved_bytes) - used};
}

void reset_device_peak(int device) {
  if (auto* const allocator = device_allocator())
    allocator->resetPeakStats(static_cast<c10::DeviceIndex>(device));
}
#else
bool can_trace_device() {
  return false;
}

void trace_device(bool /*on*/) {
}

std::uint64_t device_bytes(int) {
  return 0;
}

AllocatorState allocator_state(int) {
  return {};
}

std::optional<DeviceMemory> device_memory(int) {
  return std::nullopt;
}

void reset_device_peak(int) {
}
#endif

}  // namespace lockstep::profile
