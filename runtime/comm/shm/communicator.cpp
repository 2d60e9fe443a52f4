#include "runtime/comm/shm/communicator.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "common/cpu_list.h"
#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/across.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/shm/join.h"
#include "runtime/comm/shm/node_group.h"
#include "runtime/comm/thread.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

enum class Ownership : std::uint8_t { caller, here };

class ShmCommunicator;

// All of this process that have no thread: a rank that waits in one of them must move the others on too, or
// two ranks that wait in different ones would wait for ever.
struct Threadless {
  std::mutex mutex;
  std::vector<ShmCommunicator*> all;
};

Threadless& threadless() {
  static auto& instance = *new Threadless;
  return instance;
}

// With something under way elsewhere a waiting rank looks there this often.
constexpr std::chrono::milliseconds kLookElsewhere{1};

// How long a waiting rank looks again and again before it sleeps, where every rank has a CPU of its own.
// Waking up takes some 50 µs.
constexpr std::chrono::microseconds kSpin{200};

// What a loop that looks again and again does in between.
void relax() {
  for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }
}

class ShmCommunicator : public Communicator, private Driver {
 public:
  ShmCommunicator(MPI_Comm world, Ownership ownership, const Place& place, std::vector<int> cpus,
                  std::string group, Joined joined)
      : Communicator(place),
        group_name_(std::move(group)),
        world_(world),
        ownership_(ownership),
        cpus_(std::move(cpus)),
        spin_(joined.ranks_share_cpus ? std::chrono::microseconds(0) : kSpin),
        across_(joined.place.nodes > 1 ? mpi::connect_nodes(world, joined.place) : nullptr),
        group_(std::move(joined.board), joined.place, std::move(joined.ranks), across_.get()),
        name_(joined.place.local_size != place.local_size ? "mpi"
              : across_                                   ? "shared memory and mpi"
                                                          : "shared memory") {
    if (across_) {
      thread_ = start_thread([this] { serve(); });
    } else {
      const std::scoped_lock lock(threadless().mutex);
      threadless().all.push_back(this);
    }
  }

  ~ShmCommunicator() override {
    // After an exception the others do not come here together with this rank: nothing is waited for, and the
    // program's end, or the thread's now, ends the job.
    const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
    if (unwinding && across_) end_job(named("an exception left the block of the communicator"));
    const std::string what = named("the last operations before the communicator's end");
    if (!across_) {
      if (!unwinding) {
        drive_until([this] { return group_.idle(); }, what);
        group_.leave(false);
      }
      const std::scoped_lock lock(threadless().mutex);
      std::erase(threadless().all, this);
    } else {
      const Deadline deadline(what);
      ending_ = true;
      group_.board().ring();
      thread_.join();
    }
    if (unwinding) return;
    const Deadline deadline(named("the communicator's end"));
    if (ownership_ == Ownership::here) MPI_Comm_free(&world_);
  }

  std::string_view name() const override { return name_; }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options) override {
    const bool scaled = options.scale != nullptr;
    return ask({Kind::all_reduce, buffer.type, options.op, 0, buffer.count, scaled}, buffer, nullptr, label,
               std::move(options));
  }
  WorkHandle broadcast(Buffer buffer, int root, std::string_view label) override {
    return ask({Kind::broadcast, buffer.type, ReduceOp::sum, root, buffer.count}, buffer, nullptr, label, {});
  }
  WorkHandle all_gather(Buffer mine, void* all, std::string_view label) override {
    return ask({Kind::all_gather, mine.type, ReduceOp::sum, 0, mine.count}, mine, all, label, {});
  }
  WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label, ReduceOptions options) override {
    const bool scaled = options.scale != nullptr;
    return ask({Kind::reduce_scatter, mine.type, options.op, 0, mine.count, scaled}, mine, all, label,
               std::move(options));
  }
  WorkHandle barrier(std::string_view label) override { return ask({}, {}, nullptr, label, {}); }

  std::shared_ptr<void> allocate(std::size_t bytes) override { return shm::allocate(bytes); }

  void progress() override {
    if (!across_) progress_as(false);
  }

  /// Whether anything moved, and whether nothing is left.
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
  WorkHandle ask(Request request, Buffer buffer, void* all, std::string_view label, ReduceOptions options);
  void drive_until_ended(Operation& operation) override;
  void drive() override { progress(); }
  bool advance(bool waiting);
  Progress progress_elsewhere();
  template <typename Condition>
  void drive_until(Condition condition, const std::string& what);
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
  std::unique_ptr<Across> across_;
  std::mutex mutex_;  // of what follows
  NodeGroup group_;
  std::string_view name_;
  std::vector<std::shared_ptr<Task>> asked_;  // for the thread
  std::atomic<bool> idle_{true};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

WorkHandle ShmCommunicator::ask(Request request, Buffer buffer, void* all, std::string_view label,
                                ReduceOptions options) {
  request.label = std::hash<std::string_view>{}(label);
  request.step = step();
  auto task = std::make_shared<Task>();
  task->request = request;
  task->label = in_group(label);  // without the step, which the request has and a cut label would lose
  task->buffer = buffer;
  task->all = all;
  task->operation = std::make_shared<Operation>(describe(name_of(request.kind), named(label), buffer.bytes()),
                                                across_ ? nullptr : static_cast<Driver*>(this));
  WorkHandle work = task->operation;
  // What cannot be done fails here, on every rank alike, and takes no number.
  try {
    const void* const none[] = {nullptr};
    reduce(none, nullptr, 0, request.type, finish_of(options, size()));
    if (request.root < 0 || request.root >= size()) {
      fail_usage("there is no rank {}; ranks are 0 to {}", request.root, size() - 1);
    }
  } catch (...) {
    task->operation->finish(std::current_exception());
    return work;
  }
  task->options = std::move(options);
  {
    const std::scoped_lock lock(mutex_);
    if (across_) {
      asked_.push_back(std::move(task));
    } else {
      group_.add(std::move(task));
      advance(false);
    }
  }
  if (across_) group_.board().ring();
  return work;
}

bool ShmCommunicator::advance(bool waiting) {
  const bool moved = group_.advance(waiting);
  idle_.store(group_.idle(), std::memory_order_relaxed);
  return moved;
}

ShmCommunicator::Progress ShmCommunicator::progress_elsewhere() {
  Progress all;
  const std::scoped_lock lock(threadless().mutex);
  for (ShmCommunicator* other : threadless().all) {
    if (other == this) continue;
    const Progress one = other->progress_as(true);
    all = {.moved = all.moved || one.moved, .idle = all.idle && one.idle};
  }
  return all;
}

// Looks again and again, then sleeps until somebody of this node has moved. Ends the job when `what` takes
// too long.
template <typename Condition>
void ShmCommunicator::drive_until(Condition condition, const std::string& what) {
  const Board& board = group_.board();
  const Board::Waiting waiting(board);
  Patience patience;
  auto sleep_at = Clock::now() + spin_;
  for (;;) {
    const std::uint32_t heard = board.listen();
    bool moved = false;
    {
      const std::scoped_lock lock(mutex_);
      moved = advance(true);
      if (condition()) return;
    }
    const Progress elsewhere = progress_elsewhere();
    const auto now = Clock::now();
    if (moved || elsewhere.moved) sleep_at = now + spin_;
    if (now < sleep_at) {
      relax();
    } else if (!patience.over()) {
      board.sleep(heard, elsewhere.idle ? patience.look_again_in() : kLookElsewhere);
    } else {
      timed_out(what);
    }
  }
}

void ShmCommunicator::drive_until_ended(Operation& operation) {
  drive_until([&] { return operation.ended(); }, operation.name());
}

void ShmCommunicator::serve() {
  pthread_setname_np(pthread_self(), "lockstep-comm");
  if (!cpus_.empty()) bind_this_thread(cpus_);
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns; naps of the default, 50 µs more than asked for, would be too long
  const Board& board = group_.board();
  for (;;) {
    const std::uint32_t heard = board.listen();
    {
      const std::scoped_lock lock(mutex_);
      for (auto& task : asked_) group_.add(std::move(task));
      asked_.clear();
    }
    const bool moved = group_.advance(true);
    if (ending_ && group_.idle()) {
      // World's ends here and MPI's after it, where ranks wait for each other. Groups end in any order.
      return group_.leave(ownership_ == Ownership::caller && mpi::ends_with_world());
    }
    if (!moved) board.sleep(heard, std::chrono::hours(1));
  }
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, std::string_view name) {
  // All that was asked for before comes first: the thread's collectives are on the same MPI communicator.
  barrier("a split")->wait();  // without the name, which each part may have its own
  const Deadline deadline(fmt::format("the split into {}", name));
  MPI_Comm part = MPI_COMM_NULL;
  mpi::check(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank(), &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return nullptr;
  const Place place = mpi::find_place(part);
  return std::make_unique<ShmCommunicator>(part, Ownership::here, place, cpus_, std::string(name),
                                           join(part, place));
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(MPI_Comm world, const Place& place, std::vector<int> cpus) {
  const Deadline deadline("the meeting of the communicator's ranks");
  return std::make_unique<ShmCommunicator>(world, Ownership::caller, place, std::move(cpus), "",
                                           join(world, place));
}

}  // namespace lockstep::comm::shm
