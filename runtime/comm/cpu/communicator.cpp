#include "runtime/comm/cpu/communicator.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/thread.h"
#include "runtime/comm/cpu/alarm.h"
#include "runtime/comm/cpu/inter_node.h"
#include "runtime/comm/cpu/join.h"
#include "runtime/comm/cpu/node_group.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/shm/segment.h"
#include "runtime/comm/timeout.h"

namespace lockstep::comm::cpu {
namespace {

using Clock = std::chrono::steady_clock;

enum class Ownership : std::uint8_t { caller, here };

class CpuCommunicator;

// The communicators of this process that have no thread. A rank that waits in one of them must advance the
// others too: two ranks that wait in different ones would otherwise wait for ever.
struct PolledCommunicators {
  std::mutex mutex;
  std::vector<CpuCommunicator*> all;
};

PolledCommunicators& polled() {
  static auto& instance = *new PolledCommunicators;
  return instance;
}

// How often a waiting rank advances other communicators that have operations.
constexpr std::chrono::milliseconds kOthersInterval{1};

// How long a waiting rank spins before it sleeps, if every rank has its own CPU. Waking up takes about 50 µs.
constexpr std::chrono::microseconds kSpin{200};
// The same while messages of other nodes travel: MPI moves them only while it is called, and does not tell how far they
// are. So this is longer than the longest message takes.
constexpr std::chrono::milliseconds kNetworkSpin{1};

// A caller that waits for its operation does the work itself: to hand a small operation over to the communicator's thread
// would take longer than the operation. The thread begins when a caller that computes calls progress() or, without that,
// after this time. A shorter time would cost more: each alarm interrupts a caller that waits.
constexpr std::chrono::milliseconds kBeforeTheThread{2};

// A poll may take this long before the first nap: a small message has arrived by then.
constexpr std::chrono::microseconds kPoll{10};
// Naps between polls of the network: short compared with the time in which socket buffers fill, long compared with a poll.
// They become longer while nothing arrives: another node is still in its backward then, and so is this one, whose CPU the
// polls would take.
constexpr std::chrono::microseconds kNap{20};
constexpr std::chrono::microseconds kLongestNap{500};

// By default Linux may let a sleep take 50 µs more than was asked for. So the first nap of a thread sets that to 1 µs, and
// leaves it so: to set it twice for each nap would take longer than the nap.
void nap(std::chrono::nanoseconds duration) {
  [[maybe_unused]] thread_local const int set = ::prctl(PR_SET_TIMERSLACK, 1000);
  std::this_thread::sleep_for(duration);
}

// A pause in a spin loop.
void relax() {
  for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#else
    std::this_thread::yield();
#endif
  }
}

class CpuCommunicator : public Communicator, private Driver {
 public:
  CpuCommunicator(MPI_Comm world, Ownership ownership, const RankInfo& place, std::vector<int> cpus,
                  std::string group, Joined joined)
      : Communicator(place),
        group_name_(std::move(group)),
        world_(world),
        ownership_(ownership),
        cpus_(std::move(cpus)),
        spin_(joined.ranks_share_cpus ? std::chrono::microseconds(0) : kSpin),
        spans_nodes_(joined.place.nodes > 1),
        group_(std::move(joined.slots), joined.place, std::move(joined.ranks),
               spans_nodes_ ? std::make_shared<InterNode>(world, joined.place) : nullptr),
        name_(joined.place.local_size != place.local_size ? "mpi"
              : spans_nodes_                              ? "shared memory and mpi"
                                                          : "shared memory") {
    if (spans_nodes_) {
      thread_ = start_thread([this] { serve(); });
    } else {
      const std::scoped_lock lock(polled().mutex);
      polled().all.push_back(this);
    }
  }

  ~CpuCommunicator() override {
    // After an exception the other ranks may not come here, so this rank must not wait for them. Without a
    // thread, the exit of this process ends the job; with one, end_job() does.
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    if (unwinding && spans_nodes_) end_job(named("an exception destroyed the communicator"));
    if (!unwinding) leave();
    if (spans_nodes_) {
      ending_ = true;
      alarm_.ring_now();
      thread_.join();
    } else {
      const std::scoped_lock lock(polled().mutex);
      std::erase(polled().all, this);
    }
    if (unwinding) return;
    const Deadline deadline(named("the communicator's end"));
    if (ownership_ == Ownership::here) MPI_Comm_free(&world_);
  }

  std::string_view name() const override { return name_; }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options) override {
    const bool scaled = options.scale != nullptr;
    return enqueue({OperationKind::all_reduce, buffer.type, options.op, 0, buffer.count, scaled}, buffer,
                   nullptr, label, std::move(options));
  }
  WorkHandle broadcast(Buffer buffer, int root, std::string_view label) override {
    return enqueue({OperationKind::broadcast, buffer.type, ReduceOp::sum, root, buffer.count}, buffer,
                   nullptr, label, {});
  }
  WorkHandle all_gather(Buffer mine, void* all, std::string_view label) override {
    return enqueue({OperationKind::all_gather, mine.type, ReduceOp::sum, 0, mine.count}, mine, all, label,
                   {});
  }
  WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label, ReduceOptions options) override {
    const bool scaled = options.scale != nullptr;
    return enqueue({OperationKind::reduce_scatter, mine.type, options.op, 0, mine.count, scaled}, mine, all,
                   label, std::move(options));
  }
  WorkHandle exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                      std::string_view label) override {
    check_peers(sends);
    check_peers(receives);
    auto task = std::make_shared<Task>();
    task->sends.assign(sends.begin(), sends.end());
    task->receives.assign(receives.begin(), receives.end());
    return enqueue({.kind = OperationKind::exchange}, {}, nullptr, label, {}, std::move(task));
  }
  WorkHandle barrier(std::string_view label) override { return enqueue({}, {}, nullptr, label, {}); }

  std::shared_ptr<void> allocate(std::size_t bytes) override { return shm::allocate(bytes); }

  void progress() override {
    if (spans_nodes_) {
      call_thread();
    } else {
      progress_as(false);
    }
  }

  NetworkUse network_use() const override {
    const std::scoped_lock lock(mutex_);
    return group_.network_use();
  }

  /// Whether anything advanced, and whether no operation is left.
  struct Progress {
    bool moved = false;
    bool idle = true;
  };
  Progress progress_as(bool waiting) {
    if (idle_.load(std::memory_order_relaxed)) return {};
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return {.moved = lock && advance(waiting), .idle = idle_.load(std::memory_order_relaxed)};
  }

  std::unique_ptr<Communicator> split(int color, std::string_view name) override;

 private:
  WorkHandle enqueue(OperationRequest request, Buffer buffer, void* all, std::string_view label,
                     ReduceOptions options, std::shared_ptr<Task> task = std::make_shared<Task>());
  class Driving;
  void drive_until_ended(Operation& operation) override;
  void drive() override { progress(); }
  bool advance(bool waiting);
  // Call it with queue_mutex_.
  bool has_work() const { return !idle_ || !queued_.empty(); }
  void call_thread();
  bool thread_is_due();
  Progress progress_others();
  void drive_until(const std::function<bool()>& ended, const std::string& what);
  void leave();
  void serve();
  std::string in_group(std::string_view label) const {
    return group_name_.empty() ? std::string(label) : fmt::format("{} of group {}", label, group_name_);
  }
  std::string named(std::string_view label) const {
    return step() == 0 ? in_group(label) : fmt::format("{} in step {}", in_group(label), step());
  }

  int exceptions_at_start_ = std::uncaught_exceptions();
  std::string group_name_;
  MPI_Comm world_;
  Ownership ownership_;
  std::vector<int> cpus_;
  std::chrono::microseconds spin_;
  bool spans_nodes_;
  mutable std::mutex mutex_;  // guards group_
  NodeGroup group_;
  std::string_view name_;
  std::atomic<bool> idle_{true};

  // With several nodes:
  std::mutex queue_mutex_;
  std::vector<std::shared_ptr<Task>> queued_;  // asked for, not yet in group_
  int drivers_ = 0;                  // threads that wait, and so do the work of the communicator's thread
  bool thread_works_ = false;        // or is about to
  Clock::time_point thread_begins_;  // unless a thread waits before that time
  Alarm alarm_;                      // of the communicator's thread
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

WorkHandle CpuCommunicator::enqueue(OperationRequest request, Buffer buffer, void* all,
                                    std::string_view label, ReduceOptions options,
                                    std::shared_ptr<Task> task) {
  request.label = std::hash<std::string_view>{}(label);
  request.step = step();
  task->request = request;
  task->label = in_group(label);  // the step is in the request
  task->buffer = buffer;
  task->all = all;
  task->operation = std::make_shared<Operation>(
      comm::describe(name_of(request.kind), named(label), buffer.bytes()), static_cast<Driver*>(this));
  WorkHandle work = task->operation;
  // An invalid request fails here, on every rank alike, and gets no number.
  try {
    // The scale is read later: an earlier operation may still write it.
    static constexpr double kAnyScale = 1;
    ReduceOptions checked;
    checked.op = options.op;
    if (options.scale != nullptr) checked.scale = &kAnyScale;
    const void* const none[] = {nullptr};
    reduce(none, nullptr, 0, request.type, scaled_op_of(checked, size()));
    if (request.root < 0 || request.root >= size()) {
      fail_usage("there is no rank {}; ranks are 0 to {}", request.root, size() - 1);
    }
  } catch (...) {
    task->operation->finish(std::current_exception());
    return work;
  }
  task->options = std::move(options);
  if (spans_nodes_) {
    {
      const std::scoped_lock lock(queue_mutex_);
      if (!has_work() && drivers_ == 0) {
        thread_begins_ = Clock::now() + kBeforeTheThread;
        alarm_.set(kBeforeTheThread);
      }
      queued_.push_back(std::move(task));
    }
    group_.slots().notify_all();
  } else {
    const std::scoped_lock lock(mutex_);
    group_.add(std::move(task));
    advance(false);
  }
  return work;
}

// Call it with mutex_.
bool CpuCommunicator::advance(bool waiting) {
  if (spans_nodes_) {
    const std::scoped_lock lock(queue_mutex_);
    for (auto& task : queued_) group_.add(std::move(task));
    if (!queued_.empty())
      idle_.store(false, std::memory_order_relaxed);  // together with the queue: has_work()
    queued_.clear();
  }
  const bool moved = group_.advance(waiting);
  idle_.store(group_.idle(), std::memory_order_relaxed);
  return moved;
}

CpuCommunicator::Progress CpuCommunicator::progress_others() {
  Progress all;
  const std::scoped_lock lock(polled().mutex);
  for (CpuCommunicator* other : polled().all) {
    if (other == this) continue;
    const Progress one = other->progress_as(true);
    all = {.moved = all.moved || one.moved, .idle = all.idle && one.idle};
  }
  return all;
}

// While it exists, the calling thread does the work of the communicator's thread.
class CpuCommunicator::Driving {
 public:
  explicit Driving(CpuCommunicator& communicator) : communicator_(communicator) { add(1); }
  ~Driving() {
    add(-1);
    communicator_.call_thread();
  }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

 private:
  void add(int drivers) {
    const std::scoped_lock lock(communicator_.queue_mutex_);
    communicator_.drivers_ += drivers;
  }
  CpuCommunicator& communicator_;
};

// Drives the operations until `ended`, which is called with mutex_. Every driver is in here: a caller that waits for
// `what`, and whose job ends if that takes too long; or, with several nodes and while no caller waits, the communicator's
// thread, whose `what` is empty.
void CpuCommunicator::drive_until(const std::function<bool()>& ended, const std::string& what) {
  const bool is_caller = !what.empty();
  std::optional<Driving> driving;
  if (spans_nodes_ && is_caller) driving.emplace(*this);
  const OperationSlots::Waiting waiting(group_.slots());
  const std::chrono::microseconds spin = is_caller ? spin_ : std::chrono::microseconds(0);
  OperationTimeout timeout;
  auto moved_at = Clock::now();
  for (;;) {
    const std::uint32_t events = group_.slots().event_count();
    bool moved = false;
    bool exchanging = false;
    {
      const std::scoped_lock lock(mutex_);
      if (ended()) return;
      moved = advance(true);
      if (is_caller && ended()) return;
      exchanging = group_.exchanging();
    }
    Progress others;
    if (is_caller) {
      others = progress_others();
      if (timeout.expired()) end_job_by_timeout(what);
    }
    const auto now = Clock::now();
    if (moved || others.moved) {
      moved_at = now;
      continue;
    }
    const auto idle = now - moved_at;
    if (exchanging) {
      // MPI makes progress only while it is called.
      if (idle >= (spin.count() > 0 ? Clock::duration(kNetworkSpin) : kPoll))
        nap(std::clamp<Clock::duration>(idle / 4, kNap, kLongestNap));
    } else if (idle < spin) {
      relax();
    } else {
      // Until another rank of this node makes progress.
      group_.slots().sleep(events, others.idle ? timeout.next_check() : kOthersInterval);
    }
  }
}

void CpuCommunicator::drive_until_ended(Operation& operation) {
  drive_until([&] { return operation.ended(); }, operation.name());
}

// Lets the communicator's thread work now, if no other one does.
void CpuCommunicator::call_thread() {
  const std::scoped_lock lock(queue_mutex_);
  if (thread_works_ || drivers_ > 0 || !has_work()) return;
  thread_works_ = true;
  thread_begins_ = {};
  alarm_.ring_now();
}

// Whether the communicator's thread must work now. If it must later, sets the alarm.
bool CpuCommunicator::thread_is_due() {
  const std::scoped_lock lock(queue_mutex_);
  thread_works_ = drivers_ == 0 && has_work() && Clock::now() >= thread_begins_;
  if (!thread_works_ && drivers_ == 0 && has_work()) alarm_.set(thread_begins_ - Clock::now());
  return thread_works_;
}

// The communicator's thread. While it drives, it sleeps as any driver does; otherwise only the alarm wakes it.
void CpuCommunicator::serve() {
  pthread_setname_np(pthread_self(), "lockstep-comm");
  if (!cpus_.empty()) bind_this_thread(cpus_);
  while (!ending_) {
    drive_until([this] { return !thread_is_due(); }, {});
    alarm_.wait();
  }
}

// If World finalises MPI, the ranks leave World's communicator together and wait for each other. Groups end in any order.
void CpuCommunicator::leave() {
  const std::string what = named("the last operations before the communicator's end");
  const Deadline deadline(what);
  const auto idle = [this] {
    const std::scoped_lock lock(queue_mutex_);
    return !has_work();
  };
  drive_until(idle, what);
  {
    const std::scoped_lock lock(mutex_);
    group_.leave(ownership_ == Ownership::caller && mpi::ends_with_world());
  }
  drive_until([this] { return !group_.exchanging(); }, what);
}

std::unique_ptr<Communicator> CpuCommunicator::split(int color, std::string_view name) {
  // Waits for the operations that were asked for before: the thread uses the same MPI communicator.
  barrier("a split")->wait();  // without the name, which may differ between the parts
  const Deadline deadline(fmt::format("the split into {}", name));
  MPI_Comm part = MPI_COMM_NULL;
  mpi::check(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank(), &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return nullptr;
  const RankInfo place = mpi::find_place(part);
  return std::make_unique<CpuCommunicator>(part, Ownership::here, place, cpus_, std::string(name),
                                           join(part, place));
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const RankInfo& place,
                                                std::vector<int> cpus) {
  const Deadline deadline("the start of the communicator");
  return std::make_unique<CpuCommunicator>(world, Ownership::caller, place, std::move(cpus), "",
                                           join(world, place));
}

}  // namespace lockstep::comm::cpu
