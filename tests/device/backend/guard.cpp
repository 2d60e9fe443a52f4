// Devices, streams and events, as LibTorch's own guard for CUDA has them.
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <mutex>

#include "tests/device/backend/backend.h"

namespace lockstep::simulated {
namespace {

constexpr std::size_t kDevices = 16;
constexpr std::size_t kPool = 4;  // streams of the pool, for each device

// 0 is the default stream; others are the address of a stream.
thread_local std::array<c10::StreamId, kDevices> current_streams{};

cudaStream_t handle(c10::Stream stream) {
  return static_cast<cudaStream_t>(native(stream));
}

// Autograd asks all guards for their devices. That of CUDA would find the simulated ones, and call what the simulation
// does not have.
bool remove_guard_of_cuda() {
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)].store(nullptr);
  return true;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    static const bool removed = remove_guard_of_cuda();  // it may be registered later than this one
    static_cast<void>(removed);
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return {kType, static_cast<c10::DeviceIndex>(device)};
  }
  void setDevice(c10::Device device) const override {
    if (getDevice() != device) check(cudaSetDevice(device.index()), "cudaSetDevice");
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    int before = -1;
    if (cudaGetDevice(&before) == cudaSuccess && before != device.index()) cudaSetDevice(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
    return static_cast<c10::DeviceIndex>(count);
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    static std::mutex mutex;
    struct Pool {
      std::array<std::array<cudaStream_t, kPool>, kDevices> streams{};
      std::array<std::size_t, kDevices> next{};
    };
    static std::array<Pool, 2> pools;  // by priority
    auto& [pool, next] = pools.at(high ? 1 : 0);
    if (!device.has_index()) device = getDevice();
    const auto index = static_cast<std::size_t>(device.index());
    const c10::OptionalDeviceGuard guard(device);
    const std::scoped_lock lock(mutex);
    cudaStream_t& stream = pool.at(index).at(next.at(index)++ % kPool);
    if (stream == nullptr)
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    current_streams.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(c10::Stream stream) const override { return native(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const c10::OptionalDeviceGuard guard(stream.device());
    return finished(cudaStreamQuery(handle(stream)), "cudaStreamQuery");
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const c10::OptionalDeviceGuard guard(stream.device());
    check(cudaStreamSynchronize(handle(stream)), "cudaStreamSynchronize");
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    const c10::OptionalDeviceGuard guard(c10::Device(kType, device));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_use(memory, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag flag) const override {
    const c10::OptionalDeviceGuard guard(stream.device());
    auto* made = static_cast<cudaEvent_t>(*event);
    if (made == nullptr) {
      const unsigned flags =
          flag == c10::EventFlag::BACKEND_DEFAULT ? cudaEventDefault : cudaEventDisableTiming;
      check(cudaEventCreateWithFlags(&made, flags), "cudaEventCreateWithFlags");
      *event = made;
    }
    check(cudaEventRecord(made, handle(stream)), "cudaEventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const c10::OptionalDeviceGuard guard(stream.device());
    check(cudaStreamWaitEvent(handle(stream), static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || finished(cudaEventQuery(static_cast<cudaEvent_t>(event)), "cudaEventQuery");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr)
      check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to)),
          "cudaEventElapsedTime");
    return milliseconds;
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    if (event != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }

 private:
  static bool finished(cudaError_t code, const char* call) {
    if (code == cudaErrorNotReady) return false;
    check(code, call);
    return true;
  }
};

const c10::impl::DeviceGuardImplRegistrar guard_registered(kType, new Guard);

}  // namespace

void check(cudaError_t code, const char* call) {
  TORCH_CHECK(code == cudaSuccess, call, ": ", cudaGetErrorString(code));
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device),
                     current_streams.at(static_cast<std::size_t>(device)));
}

}  // namespace lockstep::simulated

// DistributedDataParallel asks which of CUDA's streams one of this device's is (runtime/ddp/device.cpp).
extern "C" void* lockstep_cuda_stream(c10::StreamId stream) {
  return reinterpret_cast<void*>(stream);
}
