// The parts of the simulated device for LibTorch: DeviceType::PrivateUse1, named "simulated". Its memory, streams and
// events are those of the simulated CUDA runtime, so one race detector sees LibTorch, NCCL and the program. A kernel is
// the CPU's, run at once in the order of its stream; copies are asynchronous.
//
// A program gets it by linking libsimulated_torch.so or with tests/device/run.sh.
//
// Threads: safe from any.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <cuda_runtime_api.h>

namespace lockstep::simulated {

constexpr auto kType = c10::DeviceType::PrivateUse1;

void check(cudaError_t code, const char* call);

inline void* native(c10::Stream stream) {
  return reinterpret_cast<void*>(stream.id());
}

c10::Stream current_stream(c10::DeviceIndex device);

c10::Allocator* device_allocator();
/// This stream uses the memory too.
void record_use(const c10::DataPtr& memory, c10::Stream stream);

/// The kernel of every operator that the device does not have itself: the CPU's, in the order of the current stream. The
/// attribute is needed because the types of LibTorch that have none are hidden in the precompiled header.
[[gnu::visibility("default")]] void compute_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                                    torch::jit::Stack* stack);

/// The generator of the CPU's kernels that stands for this generator of a simulated device.
at::Generator& cpu_generator_of(const at::Generator& generator);
at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace lockstep::simulated
