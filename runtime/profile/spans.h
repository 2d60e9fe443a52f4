// Collects what happens in this process while a profile is taken: steps, phases, LibTorch's operators, collective
// operations, batches that the loader builds, and the memory in use.
//
//   if (tracing()) add_span({.kind = SpanKind::batch, .name = "batch", .begin_ns = begin, .end_ns = end});
// There is one collection per process, since LibTorch's callbacks and the communicators have no owner in common. While
// nothing is collected, it costs one read of memory, in tracing().
//
// Threads: safe from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::profile {

enum class SpanKind : std::uint8_t { step, phase, operation, collective, batch, device };

/// The part that an operation has in the model: called by the program in a forward, a node of backward, or called by a
/// node.
/// none: called by another operation, or outside of the model.
enum class ModelPart : std::uint8_t { none, forward, node, backward };

/// The kinds of kernels and copies of a device, by the names that CUPTI gives them.
enum class DeviceWork : std::uint8_t { kernel, tensor_kernel, communication, copy };

/// A time span in monotonic nanoseconds.
struct Span {
  SpanKind kind = SpanKind::operation;
  std::string name;
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t all_asked_ns = 0;  ///< of a collective: when the last rank asked for it; 0: unknown
  int late_rank = -1;              ///< that rank; -1: unknown
  int thread = 0;  ///< set by add_span(): the thread's number in the kernel; of a device: the stream
  ModelPart part = ModelPart::none;
  int module = -1;          ///< index in Spans::modules; -1: unknown
  std::uint64_t bytes = 0;  ///< of the results that the operation made, without views
  DeviceWork work = DeviceWork::kernel;
};

/// Things that operations do and that make a step slow or imprecise.
enum class OperationFault : std::uint8_t { host_copy, device_wait, half_sum, tuned_again };

struct FaultCount {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
};

struct MemorySample {
  std::uint64_t ns = 0;
  std::uint64_t resident_bytes = 0;  ///< of the process
  std::uint64_t device_bytes = 0;    ///< allocated by LibTorch on the rank's GPU
};

struct Spans {
  std::vector<Span> spans;
  std::vector<MemorySample> memory;  ///< one per millisecond at most
  std::map<int, std::string> thread_names;
  std::vector<std::string> modules;
  std::map<std::pair<OperationFault, std::string>, FaultCount> faults;  ///< the string names the operation
  std::uint64_t dropped = 0;                                            ///< spans after the first kMaxSpans
};

/// About 100 MB; a trace with more is too large to look at.
inline constexpr std::size_t kMaxSpans = 1'000'000;

inline std::atomic<bool> tracing_now{false};
inline bool tracing() {
  return tracing_now.load(std::memory_order_relaxed);
}

/// Ignored unless tracing().
void add_span(Span span);
void add_fault(OperationFault fault, const std::string& operation, std::uint64_t bytes = 0);

/// The modules of the model.
void set_modules(std::vector<std::string> names);

/// Begins to collect, and drops what is collected. `device_bytes` returns the GPU memory in use; null: no GPU.
void start_spans(std::function<std::uint64_t()> device_bytes = nullptr);
/// Ends collecting and returns what was collected.
Spans stop_spans();

}  // namespace lockstep::profile
