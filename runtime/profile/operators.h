// Adds LibTorch's data to the spans of a profile (spans.h): its operators in all threads, with the operators
// that they call, the nodes of backward and the program's RECORD_USER_SCOPE; the GPU memory in use; and the kernels and
// copies of this rank's GPU, from CUPTI through LibTorch's Kineto. Another profiler in the process (PyTorch's, nsys) may use
// CUPTI already: then a line says so, and the profile has no kernels.
//
// An operator of a forward belongs to the module that owns its weights, one without weights to the module before it. A
// node of backward belongs to the module of the operator that made it.
//
// Threads: add_model(), remove_model(), trace_operators() and trace_device() are called by one at a time; device_bytes() is safe from any.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/profile/resource_sampler.h"

namespace torch::nn {
class Module;
}

namespace lockstep::profile {

/// A model whose modules the following traces know. The modules of a second model are called "2:NAME".
void add_model(const torch::nn::Module& model);
/// Call it before the model ends.
void remove_model(const torch::nn::Module& model);

/// Switches the tracing of operators on or off. A call with the current value does nothing. An operator that
/// runs at that moment is left out. `shapes`: its name is followed by the sizes of its inputs, "aten::mm [32, 8] [8, 64]".
void trace_operators(bool on, bool shapes = false);

/// Whether LibTorch's devices are CUDA's: CUPTI knows no others.
bool can_trace_device();

/// A build without CUDA records nothing. true: begins to record; if it records already, forgets what ended before. false: ends, and adds the spans.
void trace_device(bool on);

/// Bytes that LibTorch's allocator has handed out on this GPU; 0 before its first use, and in a build without
/// CUDA.
std::uint64_t device_bytes(int device);
/// The same allocator's unused memory, and how often it found none.
AllocatorState allocator_state(int device);

/// The memory of tensors on a GPU: bytes now, the maximum since reset_device_peak(), and what more tensors can get.
struct DeviceMemory {
  std::uint64_t used = 0;
  std::uint64_t peak = 0;
  std::uint64_t left = 0;
};
/// None before the allocator's first use, and in a build without CUDA.
std::optional<DeviceMemory> device_memory(int device);
void reset_device_peak(int device);

}  // namespace lockstep::profile
