// The calls of the CUDA runtime, with CUDA's rules for what each of them orders and for what it waits.
#include <atomic>
#include <cstring>
#include <utility>

#include "tests/device/simulator.h"

namespace lockstep::simulated {
namespace {

std::atomic<int> calls_unfit_for_capture = 0;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) Simulator::get().this_thread().last_error = error;
  return error;
}

// A call that needs a device.
template <typename Body>
cudaError_t call(const Body& body) {
  Simulator& simulator = Simulator::get();
  if (simulator.devices() == 0) return remember(cudaErrorNoDevice);
  if (simulator.due(Fault::cudart)) return remember(cudaErrorUnknown);
  if (simulator.device_error() != cudaSuccess) return remember(simulator.device_error());
  return remember(body(simulator));
}

// A call that makes the current device's context.
template <typename Body>
cudaError_t call_on_device(const Body& body) {
  return call([&](Simulator& simulator) {
    simulator.use_context(simulator.this_thread().device);
    return body(simulator);
  });
}

template <typename Body>
cudaError_t call_on(cudaStream_t handle, const Body& body) {
  return call_on_device([&](Simulator& simulator) {
    Stream* stream = simulator.find(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(simulator, *stream);
  });
}

template <typename Body>
cudaError_t call_with(cudaEvent_t handle, const Body& body) {
  return call([&](Simulator& simulator) {
    Event* event = simulator.find(handle);
    return event == nullptr ? cudaErrorInvalidResourceHandle : body(simulator, *event);
  });
}

Range range_of(const void* address, std::size_t bytes, bool write) {
  return {static_cast<const std::byte*>(address), bytes, write};
}

void queue_memset(Simulator& simulator, Stream& stream, const char* name, void* memory, int value,
                  std::size_t bytes) {
  simulator.queue(
      stream, Label(name), {range_of(memory, bytes, true)}, nullptr,
      [&simulator, memory, value, bytes] { std::memset(simulator.reachable(memory), value, bytes); });
}

enum class Kind { pageable, pinned, device };

Kind kind_of(const Block* block) {
  if (block == nullptr) return Kind::pageable;
  return block->device < 0 ? Kind::pinned : Kind::device;
}

bool agrees(Kind kind, bool should_be_device) {
  return (kind == Kind::device) == should_be_device;
}

// Queues a copy. `waits`: the call is cudaMemcpy, which waits for the copy unless it is within the device.
cudaError_t copy(Simulator& simulator, Stream& stream, const char* name, void* to, const void* from,
                 std::size_t bytes, cudaMemcpyKind direction, bool waits) {
  const Kind source = kind_of(simulator.containing(from));
  const Kind target = kind_of(simulator.containing(to));
  if (direction != cudaMemcpyDefault) {
    const bool from_device = direction == cudaMemcpyDeviceToHost || direction == cudaMemcpyDeviceToDevice;
    const bool to_device = direction == cudaMemcpyHostToDevice || direction == cudaMemcpyDeviceToDevice;
    if (!agrees(source, from_device) || !agrees(target, to_device)) return cudaErrorInvalidValue;
  }
  std::vector<Range> ranges;
  if (source != Kind::pageable) ranges.push_back(range_of(from, bytes, false));
  if (target != Kind::pageable) ranges.push_back(range_of(to, bytes, true));
  auto staged = std::make_shared<std::vector<std::byte>>(bytes);
  const auto read = [&simulator, staged, from, bytes] {
    std::memcpy(staged->data(), simulator.reachable(from), bytes);
  };
  const auto write = [&simulator, staged, to, bytes] {
    std::memcpy(simulator.reachable(to), staged->data(), bytes);
  };
  const Label label(name);
  if (source == Kind::pageable && target == Kind::device) {
    // The call returns when the memory has been staged; the copy to the device goes on.
    if (waits) simulator.synchronise(stream);
    read();
    simulator.queue(stream, label, std::move(ranges), nullptr, write);
    return cudaSuccess;
  }
  simulator.queue(stream, label, std::move(ranges), read, write);
  const bool within_device = source == Kind::device && target == Kind::device;
  if (target == Kind::pageable || (waits && !within_device)) simulator.synchronise(stream);
  return simulator.device_error();
}

}  // namespace

int take_calls_unfit_for_capture() {
  return calls_unfit_for_capture.exchange(0);
}

extern "C" {

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
// LibTorch asks for the versions.
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Simulator::get().devices();
  return remember(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  return call([&](Simulator& simulator) {
    *device = simulator.this_thread().device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&](Simulator& simulator) {
    if (device < 0 || device >= simulator.devices()) return cudaErrorInvalidDevice;
    simulator.this_thread().device = device;
    simulator.use_context(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&](Simulator& simulator) {
    if (device < 0 || device >= simulator.devices()) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "simulated device");
    std::memset(properties->uuid.bytes, 0x51, sizeof properties->uuid.bytes);
    properties->uuid.bytes[15] = static_cast<char>(device);
    properties->totalGlobalMem = std::size_t{64} << 30;
    properties->major = 9;
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() {
  return std::exchange(Simulator::get().this_thread().last_error, cudaSuccess);
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "unknown error";
  }
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call_on_device([&](Simulator& simulator) {
    *stream = reinterpret_cast<cudaStream_t>(
        simulator.make_stream(simulator.this_thread().device, (flags & cudaStreamNonBlocking) == 0));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call_on(handle, [](Simulator& simulator, Stream& stream) {
    simulator.destroy_stream(&stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ++calls_unfit_for_capture;
  return call_on(handle, [](Simulator& simulator, Stream& stream) {
    if (!simulator.finished(stream.last)) return cudaErrorNotReady;
    simulator.this_thread().clock.join(stream.clock);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ++calls_unfit_for_capture;
  return call_on(handle, [](Simulator& simulator, Stream& stream) {
    if (simulator.drops(Wait::host, Label("cudaStreamSynchronize"))) return cudaSuccess;
    simulator.synchronise(stream);
    return simulator.device_error();
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned /*flags*/) {
  return call_on(handle, [&](Simulator& simulator, Stream& stream) {
    const Event* event = simulator.find(event_handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->operation == nullptr) return cudaSuccess;
    if (!simulator.drops(Wait::stream, Label("cudaStreamWaitEvent"))) {
      simulator.make_wait(stream, event->operation, event->clock);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  ++calls_unfit_for_capture;
  return call_on_device([](Simulator& simulator) {
    if (simulator.drops(Wait::host, Label("cudaDeviceSynchronize"))) return cudaSuccess;
    simulator.synchronise_device(simulator.this_thread().device);
    return simulator.device_error();
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call_on_device([&](Simulator& simulator) {
    *event = reinterpret_cast<cudaEvent_t>(
        simulator.make_event(simulator.this_thread().device, (flags & cudaEventDisableTiming) == 0));
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call_with(handle, [](Simulator& simulator, Event& event) {
    simulator.destroy_event(&event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call_on(stream_handle, [&](Simulator& simulator, Stream& stream) {
    Event* event = simulator.find(handle);
    if (event == nullptr || event->device != stream.device) return cudaErrorInvalidResourceHandle;
    simulator.record(*event, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  ++calls_unfit_for_capture;
  return call_with(handle, [](Simulator& simulator, Event& event) {
    if (event.operation == nullptr) return cudaSuccess;
    if (simulator.drops(Wait::query, Label("cudaEventQuery"), event.record)) return cudaSuccess;
    if (!simulator.finished(event.operation)) return cudaErrorNotReady;
    simulator.this_thread().clock.join(event.clock);
    return simulator.device_error();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  ++calls_unfit_for_capture;
  return call_with(handle, [](Simulator& simulator, Event& event) {
    if (event.operation == nullptr || simulator.drops(Wait::host, Label("cudaEventSynchronize")))
      return cudaSuccess;
    simulator.synchronise(event.operation, event.clock);
    return simulator.device_error();
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from_handle, cudaEvent_t to_handle) {
  ++calls_unfit_for_capture;
  return call_with(from_handle, [&](Simulator& simulator, Event& from) {
    const Event* to = simulator.find(to_handle);
    if (to == nullptr || !from.timed || !to->timed || !from.operation || !to->operation) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!simulator.knows(from) || !simulator.knows(*to)) {
      const Label label("cudaEventElapsedTime");
      simulator.note(
          [label] { return label.text() + " asks for a time that the thread has not waited for"; });
    }
    if (!simulator.finished(from.operation) || !simulator.finished(to->operation)) return cudaErrorNotReady;
    *milliseconds =
        std::chrono::duration<float, std::milli>(to->operation->finished_at - from.operation->finished_at)
            .count();
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return call_on_device([&](Simulator& simulator) {
    *memory = simulator.allocate(bytes, simulator.this_thread().device);
    return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* memory) {
  return call_on_device([&](Simulator& simulator) {
    return memory == nullptr || simulator.free(memory) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  return call_on_device([&](Simulator& simulator) {
    *memory = simulator.allocate(bytes, std::nullopt);
    return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  ++calls_unfit_for_capture;
  return call_on(nullptr, [&](Simulator& simulator, Stream& stream) {
    queue_memset(simulator, stream, "cudaMemset", memory, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t handle) {
  return call_on(handle, [&](Simulator& simulator, Stream& stream) {
    queue_memset(simulator, stream, "cudaMemsetAsync", memory, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  ++calls_unfit_for_capture;
  return call_on(nullptr, [&](Simulator& simulator, Stream& stream) {
    return copy(simulator, stream, "cudaMemcpy", to, from, bytes, kind, true);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return call_on(handle, [&](Simulator& simulator, Stream& stream) {
    return copy(simulator, stream, "cudaMemcpyAsync", to, from, bytes, kind, false);
  });
}
// NOLINTEND(readability-identifier-naming)

}  // extern "C"

}  // namespace lockstep::simulated
