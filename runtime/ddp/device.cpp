#include "runtime/ddp/device.h"

#ifdef LOCKSTEP_WITH_NCCL
#include <c10/cuda/CUDAStream.h>

#include "runtime/comm/nccl/device_clock.h"
#endif

namespace lockstep::ddp {

comm::Communicator& communicator_for(World& world, torch::Device device) {
  if (device.is_cpu()) return world.communicator();
  const auto index = device.index();
  auto& communicator = world.communicator_of_device(index);
#ifdef LOCKSTEP_WITH_NCCL
  const auto stream = [index]() -> void* { return c10::cuda::getCurrentCUDAStream(index).stream(); };
  communicator.set_stream_source(stream);
  world.timer().use_device_clock(comm::nccl::make_device_clock(index, stream));
#endif
  return communicator;
}

}  // namespace lockstep::ddp
