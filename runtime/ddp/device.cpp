#include "runtime/ddp/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>

#include "common/error.h"
#ifdef LOCKSTEP_WITH_NCCL
#include "runtime/comm/nccl/device_clock.h"
#include "runtime/ddp/cuda_stream.h"
#include "runtime/profile/operators.h"
#endif

namespace lockstep::ddp {
namespace {

// A type of device whose streams are CUDA's. NCCL is its communicator.
struct DeviceType {
  c10::DeviceType type;
  void* (*native_stream)(c10::Stream);  // null: this program cannot use the type
};

#ifndef LOCKSTEP_WITH_NCCL
constexpr auto native_cuda_stream = nullptr;
#endif

// A backend that was added to LibTorch and computes on CUDA's streams exports this function of a stream's id.
void* (*const backend_stream)(c10::StreamId) =
    reinterpret_cast<void* (*)(c10::StreamId)>(::dlsym(RTLD_DEFAULT, "lockstep_cuda_stream"));

void* native_backend_stream(c10::Stream stream) {
  return backend_stream(stream.id());
}

const std::array kTypes = {
    DeviceType{c10::kCUDA, native_cuda_stream},
    DeviceType{c10::kPrivateUse1, backend_stream == nullptr ? nullptr : &native_backend_stream}};

const DeviceType* find(c10::DeviceType type) {
  const auto* const found =
      std::find_if(kTypes.begin(), kTypes.end(), [type](const DeviceType& one) { return one.type == type; });
  return found == kTypes.end() ? nullptr : found;
}

}  // namespace

void check_supported(torch::Device device, const std::string& what) {
  if (device.is_cpu() || device.is_cuda()) return;
  const DeviceType* const type = find(device.type());
  if (type == nullptr || type->native_stream == nullptr)
    fail_usage("{} is on {}; move it to the CPU or to a CUDA device", what, device.str());
}

c10::Stream communication_stream(torch::Device device) {
  const c10::impl::VirtualGuardImpl backend(device.type());
  if (device.is_cpu()) return backend.getStream(device);
  static std::map<std::string, c10::Stream> streams;
  const auto found = streams.find(device.str());
  if (found != streams.end()) return found->second;
  // Programs take theirs from the pool of normal priority.
  return streams.emplace(device.str(), backend.getStreamFromGlobalPool(device, true)).first->second;
}

DeviceClocks clocks_of([[maybe_unused]] torch::Device device) {
#ifdef LOCKSTEP_WITH_NCCL
  if (!device.is_cpu()) {
    const auto native = find(device.type())->native_stream;
    const auto computing = [device, native]() -> void* {
      return native(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    };
    const auto communicating = [stream = native(communication_stream(device))] { return stream; };
    return {comm::nccl::make_device_clock(device.index(), computing),
            comm::nccl::make_device_clock(device.index(), communicating)};
  }
#endif
  return {};
}

comm::Communicator& communicator_for(World& world, torch::Device device) {
  if (device.is_cpu()) return world.communicator();
  auto& communicator = world.communicator_of_device(device.index());
#ifdef LOCKSTEP_WITH_NCCL
  const auto native = find(device.type())->native_stream;
  const auto stream = [device, native]() -> void* {
    return native(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  };
  communicator.set_stream(native(communication_stream(device)));
  communicator.set_stream_source(stream);
  world.timer().use_device_clock(comm::nccl::make_device_clock(device.index(), stream),
                                 [device] { return profile::allocator_state(device.index()); });
#endif
  return communicator;
}

}  // namespace lockstep::ddp
