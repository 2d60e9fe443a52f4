// The simulated devices: streams, events, host threads and what they know of each other. The two libraries translate
// their calls into these.
//
// Threads: safe from any, if not said otherwise.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/memory.h"
#include "tests/device/races.h"
#include "tests/device/simulation.h"

namespace lockstep::simulated {

using Time = std::chrono::steady_clock::time_point;

/// Work of a stream. `begin` runs when the work before it has ended, `end` after a delay; between them the memory that
/// it writes is poisoned.
struct Operation {
  std::vector<Range> ranges;
  std::function<void()> begin;
  std::function<void()> end;
  std::vector<std::shared_ptr<Operation>> after;
  std::chrono::microseconds delay{0};
  bool finished = false;
  Time finished_at;
};
using OperationPtr = std::shared_ptr<Operation>;

struct Stream {
  int device = 0;
  bool follows_default = false;  ///< ordered with the legacy default stream
  std::size_t queue = 0;
  std::uint64_t number = 0;  ///< of its last operation
  VectorClock clock;  ///< what has ended when the next operation begins, but for the default stream's rules
  OperationPtr last;
  std::deque<OperationPtr> waiting;
  std::thread thread;
  bool ending = false;
};

struct Event {
  int device = 0;
  bool timed = false;
  int record = 0;  ///< the number of its last record; 0: none
  OperationPtr operation;
  Stamp stamp;
  VectorClock clock;
};

/// An operation whose work the host does.
struct KernelState {
  Label label;
  Stamp stamp;
  VectorClock known;
  bool running = false;
  bool done = false;
};

/// What the calling thread has done and knows.
struct HostThread {
  std::size_t queue = 0;
  std::uint64_t number = 0;
  VectorClock clock;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};

class Simulator {
 public:
  static Simulator& get();

  int devices() const { return devices_; }
  HostThread& this_thread();
  /// Notes that the device has a context.
  void use_context(int device);

  Stream* make_stream(int device, bool follows_default);
  /// It ends when its work has ended; the caller does not wait.
  void destroy_stream(Stream* stream);
  /// Null stands for the default stream of the thread's device. Returns null if there is no such stream.
  Stream* find(cudaStream_t handle);
  Event* make_event(int device, bool timed);
  void destroy_event(Event* event);
  Event* find(cudaEvent_t handle);

  /// Queues work. `ranges` are as the program names them; finds races.
  OperationPtr queue(Stream& stream, const Label& label, std::vector<Range> ranges,
                     std::function<void()> begin = nullptr, std::function<void()> end = nullptr);
  /// As queue(); the operation runs when the caller has waited for `running`, until end_kernel().
  std::shared_ptr<KernelState> begin_kernel(Stream& stream, const Label& label, std::vector<Range> ranges);
  void add_access(const KernelState& kernel, const Range& range);
  void end_kernel(KernelState& kernel);
  void record(Event& event, Stream& stream);
  /// The stream's later work begins after `operation`. `clock` has the operations that have ended by then.
  void make_wait(Stream& stream, const OperationPtr& operation, const VectorClock& clock);

  bool finished(const OperationPtr& operation);
  /// Whether the calling thread has learnt, by a query or a synchronisation, that the event is reached.
  bool knows(const Event& event);
  /// Blocks. All host threads then know what `clock` knows.
  void synchronise(const OperationPtr& operation, const VectorClock& clock);
  void synchronise(Stream& stream);
  /// All work of the device.
  void synchronise_device(int device);

  void* allocate(std::size_t bytes, std::optional<int> device);
  /// Waits for all devices first, as cudaFree does. False if the memory is unknown.
  bool free(const void* address);
  /// As free_in_order() in simulation.h. False if the memory is unknown.
  bool free(const void* address, Stream& stream, const std::vector<Stream*>& others);
  const Block* containing(const void* address);
  std::byte* reachable(const void* address);

  void note(Finding finding);
  /// Whether this wait is the one to drop. `number`: 0 counts it.
  bool drops(Wait kind, const Label& label, int number = 0);
  bool due(Fault kind);
  /// The error of a device that has failed.
  cudaError_t device_error() const { return device_error_; }
  void fail_device() { device_error_ = cudaErrorLaunchFailure; }
  /// A number from 0 to `end` - 1, by the seed.
  int choose(int end);

  void set_seed(std::uint64_t seed);
  void drop_wait(Wait kind, int n);
  int waits(Wait kind);
  void inject(Fault kind, int n);
  std::vector<std::string> take_findings();
  std::size_t drop_findings();
  std::set<std::string> take_dropped_sites();
  std::set<int> contexts();
  void access_from_host(Range range, const Label& label);
  void learn_from_other_threads();
  bool knows_all_collectives();

 private:
  Simulator();
  void work_off(Stream& stream);
  void run(Operation& operation);
  void push(Stream& stream, OperationPtr operation);
  void join_default_stream(Stream& stream, Operation& operation);
  bool check_memory(const Range& range, const Label& label);
  const void* block_of(const Range& range) const;
  void discard_finished();

  int devices_ = 8;
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t queues_ = 0;
  std::vector<Stream*> default_streams_;
  std::set<Stream*> streams_;
  std::set<Event*> events_;
  std::vector<HostThread*> threads_;
  VectorClock synchronised_;  // what host threads know by synchronisation
  Memory memory_;
  struct Freed {
    const void* address;
    std::vector<OperationPtr> after;
  };
  std::vector<Freed> freed_;  // their bytes are still there
  RaceDetector races_;
  std::vector<Finding> findings_;
  std::set<int> contexts_;
  std::minstd_rand random_;
  std::atomic<cudaError_t> device_error_{cudaSuccess};
  struct Drop {
    int seen = 0;
    int n = 0;
  };
  std::array<Drop, 4> drops_{};
  std::vector<Label> dropped_;
  std::array<int, 6> faults_{};
  const HostThread* fault_thread_ = nullptr;
};

}  // namespace lockstep::simulated
