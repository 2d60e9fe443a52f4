// The part of CUDA's runtime that the NCCL communicator needs: errors as exceptions, owning streams and
// events, and the current device.
//
// Threads: safe from any. The current device belongs to the calling thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>
#include <type_traits>

namespace lockstep::comm::nccl {

/// Throws Error "<call>: <CUDA's text>" unless the code is cudaSuccess.
void check(cudaError_t code, const char* call);

/// The number of devices that this process can use; 0 also if there is no driver or the driver is too old.
int devices();
/// Why devices() is 0, in CUDA's words.
std::string why_no_devices();

/// "GPU-…", the same for all processes, whatever number they give to the device.
std::string identity_of(int device);

/// Makes a device current for the calling thread, which keeps it. To make the former one current again would create a
/// context there, which takes hundreds of megabytes: a thread that never chose a device starts with device 0.
void use_device(int device);

struct CudaDelete {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, CudaDelete>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, CudaDelete>;

/// On the current device. The stream does not wait for the default stream.
Stream make_stream();
Event make_event();

/// Zeroed memory of a device.
std::shared_ptr<void> allocate(int device, std::size_t bytes);

}  // namespace lockstep::comm::nccl
