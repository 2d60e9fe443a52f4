#include "runtime/comm/nccl/cuda.h"

#include <span>

#include "common/error.h"
#include "common/leaf/text.h"

namespace lockstep::comm::nccl {

void check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) fail("{}: {}", call, cudaGetErrorString(code));
}

int devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // clears the error, so that a later call does not report it
  return 0;
}

std::string why_no_devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return cudaGetErrorString(code);
}

std::string identity_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return "GPU-" + to_hex(std::as_bytes(std::span(properties.uuid.bytes)));
}

void use_device(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return Event(event);
}

std::shared_ptr<void> allocate(int device, std::size_t bytes) {
  use_device(device);
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "cudaMalloc");
  std::shared_ptr<void> owned(memory, [device](void* held) {
    if (cudaSetDevice(device) == cudaSuccess) cudaFree(held);
  });
  check(cudaMemset(memory, 0, bytes), "cudaMemset");
  // Streams that do not wait for the default stream must find the memory zeroed.
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return owned;
}

}  // namespace lockstep::comm::nccl
