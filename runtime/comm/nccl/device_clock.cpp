#include "runtime/comm/nccl/device_clock.h"

#include <cmath>

#include "common/error.h"
#include "runtime/comm/nccl/cuda.h"

namespace lockstep::comm::nccl {
namespace {

cudaEvent_t event_of(const profile::DeviceClock::Mark& mark) {
  return static_cast<cudaEvent_t>(mark.get());
}

// Operations report the errors of the device; here they only make the times unknown.
class CudaClock : public profile::DeviceClock {
 public:
  CudaClock(int device, std::function<void*()> stream) : device_(device), stream_(std::move(stream)) {}

  std::string device_identity() noexcept override {
    try {
      return identity_of(device_);
    } catch (...) {
      return "";
    }
  }

  Mark mark() noexcept override {
    try {
      use_device(device_);
      cudaEvent_t event = nullptr;
      check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
      Mark made(event, [](void* made_event) { cudaEventDestroy(static_cast<cudaEvent_t>(made_event)); });
      check(cudaEventRecord(event, static_cast<cudaStream_t>(stream_())), "cudaEventRecord");
      return made;
    } catch (...) {
      return nullptr;
    }
  }

  // True also if the device has failed, so that nobody waits for it.
  bool reached(const Mark& mark) noexcept override {
    return cudaEventQuery(event_of(mark)) != cudaErrorNotReady;
  }

  void wait(const Mark& mark) noexcept override { cudaEventSynchronize(event_of(mark)); }

  std::uint64_t ns_between(const Mark& from, const Mark& to) noexcept override {
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to)) != cudaSuccess) return 0;
    return static_cast<std::uint64_t>(std::llround(1e6 * static_cast<double>(milliseconds)));
  }

 private:
  int device_;
  std::function<void*()> stream_;
};

}  // namespace

std::unique_ptr<profile::DeviceClock> make_device_clock(int device, std::function<void*()> stream) {
  return std::make_unique<CudaClock>(device, std::move(stream));
}

}  // namespace lockstep::comm::nccl
