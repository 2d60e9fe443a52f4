// The little of CUDA's runtime that communicators on devices need: errors as exceptions, streams and events
// that free themselves, the device set for a block.
//
// Threads: as CUDA's runtime: safe from any; what is current is current for one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>
#include <type_traits>

namespace lockstep::comm::nccl {

/// Throws Error "<call>: <CUDA's text>" unless the code is cudaSuccess.
void check(cudaError_t code, const char* call);

/// Devices that this process can use: 0 where there are none, no driver, or one too old for the runtime.
int devices();
/// Why devices() is 0, in CUDA's words.
std::string why_no_devices();

/// "GPU-…", the same for everyone who sees the device, whatever its number is here.
std::string identity_of(int device);

/// Makes a device this thread's while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

struct Destroy {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

/// On the current device; the stream waits for no other one.
Stream make_stream();
Event make_event();

/// Zeroed memory of a device.
std::shared_ptr<void> allocate(int device, std::size_t bytes);

}  // namespace lockstep::comm::nccl
