#include "tests/device/simulator.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lockstep::simulated {
namespace {

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// A program with findings fails, whatever its own exit code.
void end_with_findings() {
  const auto findings = Simulator::get().take_findings();
  for (const auto& finding : findings) std::fprintf(stderr, "simulated device: %s\n", finding.c_str());
  if (findings.empty()) return;
  std::fflush(nullptr);
  _exit(66);
}

}  // namespace

Simulator& Simulator::get() {
  static auto* simulator = new Simulator;  // its threads outlive main
  return *simulator;
}

Simulator::Simulator() : devices_(number_from("SIMULATED_DEVICES", 8)) {
  set_seed(static_cast<std::uint64_t>(number_from("SIMULATED_SEED", 1)));
  for (int device = 0; device < devices_; ++device) default_streams_.push_back(make_stream(device, false));
  std::atexit(end_with_findings);
}

HostThread& Simulator::this_thread() {
  static thread_local HostThread* thread = nullptr;
  if (thread == nullptr) {
    thread = new HostThread;  // others may learn from it after its end
    const std::scoped_lock lock(mutex_);
    thread->queue = queues_++;
    threads_.push_back(thread);
  }
  return *thread;
}

void Simulator::use_context(int device) {
  const std::scoped_lock lock(mutex_);
  contexts_.insert(device);
}

Stream* Simulator::make_stream(int device, bool follows_default) {
  auto* stream = new Stream;
  const std::scoped_lock lock(mutex_);
  stream->device = device;
  stream->follows_default = follows_default;
  stream->queue = queues_++;
  streams_.insert(stream);
  return stream;
}

void Simulator::destroy_stream(Stream* stream) {
  {
    const std::scoped_lock lock(mutex_);
    stream->ending = true;
    if (stream->thread.joinable()) {
      stream->thread.detach();
    } else {
      streams_.erase(stream);
      delete stream;
    }
  }
  changed_.notify_all();
}

Stream* Simulator::find(cudaStream_t handle) {
  const int device = this_thread().device;
  const std::scoped_lock lock(mutex_);
  if (handle == nullptr || handle == cudaStreamLegacy)
    return default_streams_.at(static_cast<std::size_t>(device));
  const auto found = streams_.find(reinterpret_cast<Stream*>(handle));
  return found == streams_.end() || (*found)->ending ? nullptr : *found;
}

Event* Simulator::make_event(int device, bool timed) {
  auto* event = new Event;
  event->device = device;
  event->timed = timed;
  const std::scoped_lock lock(mutex_);
  events_.insert(event);
  return event;
}

void Simulator::destroy_event(Event* event) {
  const std::scoped_lock lock(mutex_);
  events_.erase(event);
  delete event;
}

Event* Simulator::find(cudaEvent_t handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(reinterpret_cast<Event*>(handle));
  return found == events_.end() ? nullptr : *found;
}

// The legacy default stream begins after all earlier work of the device's other streams, and they after its.
void Simulator::join_default_stream(Stream& stream, Operation& operation) {
  Stream* legacy = default_streams_.at(static_cast<std::size_t>(stream.device));
  const auto follow = [&](const Stream& other) {
    if (other.last) operation.after.push_back(other.last);
    stream.clock.join(other.clock);
  };
  if (stream.follows_default) follow(*legacy);
  if (&stream != legacy) return;
  for (const Stream* other : streams_) {
    if (other->device == stream.device && other->follows_default) follow(*other);
  }
}

void Simulator::push(Stream& stream, OperationPtr operation) {
  join_default_stream(stream, *operation);
  stream.last = operation;
  stream.waiting.push_back(std::move(operation));
  if (!stream.thread.joinable()) {
    stream.thread = std::thread([this, &stream] { work_off(stream); });
    pthread_setname_np(stream.thread.native_handle(), "simulated-gpu");
  }
  changed_.notify_all();
}

bool Simulator::check_memory(const Range& range, const Label& label) {
  const Block* block = memory_.containing(range.begin);
  if (range.bytes == 0 || block == nullptr) return true;
  if (block->freed) note([label] { return label.text() + " uses memory that was freed"; });
  const bool within = memory_.containing(range.end() - 1) == block;
  if (!within) note([label] { return label.text() + " uses memory after the end of its block"; });
  return within && !block->freed;
}

OperationPtr Simulator::queue(Stream& stream, const Label& label, std::vector<Range> ranges,
                              std::function<void()> begin, std::function<void()> end) {
  auto operation = std::make_shared<Operation>();
  const HostThread& thread = this_thread();
  const std::scoped_lock lock(mutex_);
  operation->ranges = std::move(ranges);
  if (std::all_of(operation->ranges.begin(), operation->ranges.end(),
                  [&](const Range& range) { return check_memory(range, label); })) {
    operation->begin = std::move(begin);
    operation->end = std::move(end);
  }
  // Most operations are quick and few are slow, as on a device that is shared.
  constexpr std::array<int, 5> kDelays{0, 0, 30, 150, 600};
  if (operation->end)
    operation->delay = std::chrono::microseconds(kDelays.at(static_cast<std::size_t>(choose(5))));
  stream.clock.join(thread.clock);
  stream.clock.join(synchronised_);
  push(stream, operation);
  const Stamp stamp{stream.queue, ++stream.number};
  stream.clock.add(stamp);
  for (const Range& range : operation->ranges) {
    races_.access(block_of(range), range, stamp, stream.clock, label, findings_);
  }
  return operation;
}

const void* Simulator::block_of(const Range& range) const {
  const Block* block = memory_.containing(range.begin);
  return block == nullptr ? nullptr : block->pages;
}

void Simulator::record(Event& event, Stream& stream) {
  const std::scoped_lock lock(mutex_);
  event.operation = queue(stream, Label("cudaEventRecord"), {});
  event.clock = stream.clock;
  event.stamp = {stream.queue, stream.number};
  event.record = ++drops_.at(static_cast<std::size_t>(Wait::query)).seen;
}

void Simulator::make_wait(Stream& stream, const OperationPtr& operation, const VectorClock& clock) {
  auto marker = std::make_shared<Operation>();
  const std::scoped_lock lock(mutex_);
  marker->after.push_back(operation);
  push(stream, marker);
  stream.clock.join(clock);
}

void Simulator::work_off(Stream& stream) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stream.ending || !stream.waiting.empty(); });
    if (stream.waiting.empty()) break;
    const OperationPtr operation = stream.waiting.front();
    changed_.wait(lock, [&] {
      return std::all_of(operation->after.begin(), operation->after.end(),
                         [](const OperationPtr& before) { return before->finished; });
    });
    lock.unlock();
    run(*operation);
    lock.lock();
    stream.waiting.pop_front();
    operation->finished = true;
    operation->finished_at = std::chrono::steady_clock::now();
    // Releases what they captured, and the chain of earlier operations.
    operation->begin = nullptr;
    operation->end = nullptr;
    operation->after.clear();
    changed_.notify_all();
  }
  streams_.erase(&stream);
  delete &stream;
}

void Simulator::run(Operation& operation) {
  if (!operation.end) return;
  if (due(Fault::device)) fail_device();
  if (device_error_ != cudaSuccess) return;
  if (operation.begin) operation.begin();
  for (const Range& range : operation.ranges) {
    if (range.write) std::memset(reachable(range.begin), kPoison, range.bytes);
  }
  std::this_thread::sleep_for(operation.delay);
  operation.end();
}

bool Simulator::finished(const OperationPtr& operation) {
  const std::scoped_lock lock(mutex_);
  return operation == nullptr || operation->finished;
}

bool Simulator::knows(const Event& event) {
  const HostThread& thread = this_thread();
  const std::scoped_lock lock(mutex_);
  return thread.clock.knows(event.stamp) || synchronised_.knows(event.stamp);
}

void Simulator::synchronise(const OperationPtr& operation, const VectorClock& clock) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return operation == nullptr || operation->finished; });
  synchronised_.join(clock);
}

void Simulator::synchronise(Stream& stream) {
  std::unique_lock lock(mutex_);
  // The default stream's work also waits for that of the others.
  const OperationPtr marker = queue(stream, Label("a synchronisation"), {});
  const VectorClock clock = stream.clock;
  lock.unlock();
  synchronise(marker, clock);
}

void Simulator::synchronise_device(int device) {
  std::vector<std::pair<OperationPtr, VectorClock>> all;
  {
    const std::scoped_lock lock(mutex_);
    for (const Stream* stream : streams_) {
      if (stream->device == device) all.emplace_back(stream->last, stream->clock);
    }
  }
  for (const auto& [operation, clock] : all) synchronise(operation, clock);
}

void* Simulator::allocate(std::size_t bytes, std::optional<int> device) {
  const std::scoped_lock lock(mutex_);
  return device ? memory_.allocate(bytes, *device) : memory_.allocate_host(bytes);
}

bool Simulator::free(const void* address) {
  int device = -1;
  {
    const std::scoped_lock lock(mutex_);
    const Block* block = memory_.find(address);
    if (block == nullptr) return false;
    device = block->device;
  }
  for (int other = 0; other < devices_; ++other) {
    if (device < 0 || device == other) synchronise_device(other);
  }
  const std::scoped_lock lock(mutex_);
  races_.forget(address);
  memory_.free(address);
  return true;
}

const Block* Simulator::containing(const void* address) {
  const std::scoped_lock lock(mutex_);
  return memory_.containing(address);
}

std::byte* Simulator::reachable(const void* address) {
  const std::scoped_lock lock(mutex_);
  return memory_.reachable(address);
}

void Simulator::note(Finding finding) {
  const std::scoped_lock lock(mutex_);
  findings_.push_back(std::move(finding));
}

}  // namespace lockstep::simulated
