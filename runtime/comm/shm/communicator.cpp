#include "runtime/comm/shm/communicator.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "common/cpu_list.h"
#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/across.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/shm/join.h"
#include "runtime/comm/shm/node_group.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

// How long a waiting rank looks again and again before it sleeps, where every rank has a CPU of its own.
// Waking up takes some 50 µs.
constexpr std::chrono::microseconds kSpin{200};

class ShmCommunicator : public Communicator, private Driver {
 public:
  ShmCommunicator(MPI_Comm world, Ownership ownership, const Place& place, std::vector<int> cpus,
                  Joined joined)
      : Communicator(place),
        world_(world),
        ownership_(ownership),
        cpus_(std::move(cpus)),
        spin_(joined.ranks_share_cpus ? std::chrono::microseconds(0) : kSpin),
        across_(joined.place.nodes > 1 ? mpi::connect_nodes(world, joined.place) : nullptr),
        group_(std::move(joined.board), joined.place, std::move(joined.ranks), across_.get()),
        name_(joined.place.local_size != place.local_size ? "mpi"
              : across_                                   ? "shared memory and mpi"
                                                          : "shared memory") {
    if (across_) thread_ = std::thread([this] { serve(); });
  }

  ~ShmCommunicator() override {
    const Deadline deadline("the last operations before the communicator's end");
    ending_ = true;
    if (thread_.joinable()) {
      group_.board().ring();
      thread_.join();
    } else {
      drive_until([this] { return group_.idle(); });
    }
    if (ownership_ == Ownership::here) MPI_Comm_free(&world_);
  }

  std::string_view name() const override { return name_; }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options) override {
    const Request request{Kind::all_reduce, buffer.type, options.op, 0, buffer.count};
    return ask(request, buffer, nullptr, label, std::move(options));
  }
  WorkHandle broadcast(Buffer buffer, int root, std::string_view label) override {
    return ask({Kind::broadcast, buffer.type, ReduceOp::sum, root, buffer.count}, buffer, nullptr, label, {});
  }
  WorkHandle all_gather(Buffer mine, void* all, std::string_view label) override {
    return ask({Kind::all_gather, mine.type, ReduceOp::sum, 0, mine.count}, mine, all, label, {});
  }
  WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label, ReduceOptions options) override {
    const Request request{Kind::reduce_scatter, mine.type, options.op, 0, mine.count};
    return ask(request, mine, all, label, std::move(options));
  }
  WorkHandle barrier(std::string_view label) override { return ask({}, {}, nullptr, label, {}); }

  std::shared_ptr<void> allocate(std::size_t bytes) override { return shm::allocate(bytes); }

  void progress() override {
    if (across_ || idle_.load(std::memory_order_relaxed)) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) advance(false);
  }

  std::unique_ptr<Communicator> split(int color, std::string_view name) override;

 private:
  WorkHandle ask(const Request& request, Buffer buffer, void* all, std::string_view label,
                 ReduceOptions options);
  void drive_until_done(Operation& operation) override;
  bool advance(bool waiting) {
    const bool moved = group_.advance(waiting);
    idle_.store(group_.idle(), std::memory_order_relaxed);
    return moved;
  }
  template <typename Condition>
  bool drive_until(Condition condition);
  void serve();

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

WorkHandle ShmCommunicator::ask(const Request& request, Buffer buffer, void* all, std::string_view label,
                                ReduceOptions options) {
  auto task = std::make_shared<Task>();
  task->request = request;
  task->label = label;
  task->buffer = buffer;
  task->all = all;
  task->operation = std::make_shared<Operation>(describe(name_of(request.kind), label, buffer.bytes()),
                                                across_ ? nullptr : static_cast<Driver*>(this));
  WorkHandle work = task->operation;
  if (request.kind == Kind::all_reduce || request.kind == Kind::reduce_scatter) {
    // What cannot be done fails here, on every rank alike, and takes no number.
    try {
      const void* const none[] = {nullptr};
      reduce(none, nullptr, 0, request.type, finish_of(options, size()));
    } catch (...) {
      task->operation->finish(std::current_exception());
      return work;
    }
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

// Looks again and again, then sleeps until somebody of this node has moved. False when it took too long.
template <typename Condition>
bool ShmCommunicator::drive_until(Condition condition) {
  const auto deadline = Clock::now() + operation_timeout();
  auto sleep_at = Clock::now() + spin_;
  const Board& board = group_.board();
  board.begin_wait();
  bool in_time = true;
  for (;;) {
    const std::uint32_t heard = board.listen();
    bool moved = false;
    {
      const std::scoped_lock lock(mutex_);
      moved = advance(true);
      if (condition()) break;
    }
    const auto now = Clock::now();
    if (moved) sleep_at = now + spin_;
    if (now < sleep_at) {
      for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
    } else if (now < deadline) {
      board.sleep(heard, deadline - now);
    } else {
      in_time = false;
      break;
    }
  }
  board.end_wait();
  return in_time;
}

void ShmCommunicator::drive_until_done(Operation& operation) {
  if (!drive_until([&] { return operation.done(); })) timed_out(operation.name());
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
    if (ending_ && group_.idle()) return;
    if (!moved) board.sleep(heard, std::chrono::hours(1));
  }
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, std::string_view name) {
  // All that was asked for before comes first: the thread's collectives are on the same MPI communicator.
  barrier(fmt::format("split {}", name))->wait();
  MPI_Comm part = MPI_COMM_NULL;
  mpi::check(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank(), &part), "MPI_Comm_split");
  if (part == MPI_COMM_NULL) return nullptr;
  return make_communicator(part, Ownership::here, mpi::find_place(part), cpus_);
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(MPI_Comm world, Ownership ownership, const Place& place,
                                                std::vector<int> cpus) {
  return std::make_unique<ShmCommunicator>(world, ownership, place, std::move(cpus), join(world, place));
}

}  // namespace lockstep::comm::shm
