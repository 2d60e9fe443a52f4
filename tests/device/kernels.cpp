// Kernels that the host runs, and memory that is freed in order: a simulated device needs them, and CUDA does not have
// them.
#include <algorithm>
#include <utility>

#include "tests/device/simulator.h"

namespace lockstep::simulated {
namespace {

Range range_of(const Access& access) {
  return {static_cast<const std::byte*>(access.memory), access.bytes, access.write};
}

Stream& stream_of(void* handle) {
  return *Simulator::get().find(static_cast<cudaStream_t>(handle));
}

}  // namespace

std::shared_ptr<KernelState> Simulator::begin_kernel(Stream& stream, const Label& label,
                                                     std::vector<Range> ranges) {
  auto kernel = std::make_shared<KernelState>(KernelState{label, {}, {}});
  std::unique_lock lock(mutex_);
  const auto run = [this, kernel] {
    std::unique_lock running(mutex_);
    kernel->running = true;
    changed_.notify_all();
    changed_.wait(running, [&] { return kernel->done; });
  };
  const OperationPtr operation = queue(stream, label, std::move(ranges), run, [] {});
  // The memory is not poisoned, since kernels read and write it in one go.
  operation->ranges.clear();
  operation->delay = {};
  kernel->stamp = {stream.queue, stream.number};
  kernel->known = stream.clock;
  // After a failure of the device nothing runs, and a kernel that uses freed memory does not either.
  changed_.wait(lock, [&] { return kernel->running || operation->finished; });
  return kernel;
}

void Simulator::add_access(const KernelState& kernel, const Range& range) {
  const std::scoped_lock lock(mutex_);
  if (check_memory(range, kernel.label))
    races_.access(block_of(range), range, kernel.stamp, kernel.known, kernel.label, findings_);
}

void Simulator::end_kernel(KernelState& kernel) {
  const std::scoped_lock lock(mutex_);
  kernel.done = true;
  changed_.notify_all();
}

bool Simulator::free(const void* address, Stream& stream, const std::vector<Stream*>& others) {
  const Label label("the free of memory");
  const HostThread& thread = this_thread();
  const std::scoped_lock lock(mutex_);
  const Block* block = memory_.find(address);
  if (block == nullptr) return false;
  Freed freed{.address = address, .after = {stream.last}};
  VectorClock known = stream.clock;
  known.join(thread.clock);
  known.join(synchronised_);
  for (const Stream* other : others) {
    known.join(other->clock);
    freed.after.push_back(other->last);
  }
  const Range all{static_cast<const std::byte*>(address), block->bytes, true};
  races_.access(block_of(all), all, {stream.queue, stream.number + 1}, known, label, findings_);
  races_.forget(block_of(all));
  memory_.mark_freed(address);
  freed_.push_back(std::move(freed));
  discard_finished();
  return true;
}

void Simulator::discard_finished() {
  std::erase_if(freed_, [&](const Freed& freed) {
    const bool finished = std::all_of(freed.after.begin(), freed.after.end(), [](const OperationPtr& before) {
      return before == nullptr || before->finished;
    });
    if (finished) memory_.discard(freed.address);
    return finished;
  });
}

struct Kernel::State {
  std::shared_ptr<KernelState> kernel;
};

Kernel::Kernel(void* stream, const char* name, const std::vector<Access>& uses) {
  std::vector<Range> ranges(uses.size());
  std::transform(uses.begin(), uses.end(), ranges.begin(), range_of);
  state_ = new State{Simulator::get().begin_kernel(stream_of(stream), Label(name), std::move(ranges))};
}

Kernel::~Kernel() {
  Simulator::get().end_kernel(*state_->kernel);
  delete state_;
}

void Kernel::also_uses(const Access& access) {
  Simulator::get().add_access(*state_->kernel, range_of(access));
}

void* reachable(const void* memory) {
  return Simulator::get().reachable(memory);
}

int device_of(const void* memory) {
  const Block* block = Simulator::get().containing(memory);
  return block == nullptr ? -1 : block->device;
}

void free_in_order(void* memory, void* stream, const std::vector<void*>& others) {
  std::vector<Stream*> streams(others.size());
  std::transform(others.begin(), others.end(), streams.begin(),
                 [](void* other) { return &stream_of(other); });
  if (!Simulator::get().free(memory, stream_of(stream), streams)) {
    Simulator::get().note([] { return std::string("memory was freed twice"); });
  }
}

}  // namespace lockstep::simulated
