#include "runtime/comm/mpi/communicator.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>

#include "common/cpu_list.h"
#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/all_reduce.h"
#include "runtime/comm/operation.h"

namespace lockstep::comm::mpi {
namespace {

class MpiCommunicator : public Communicator {
 public:
  /// `owned`: frees the MPI communicator at its end.
  MpiCommunicator(MPI_Comm world, Place place, std::vector<int> cpus, bool owned)
      : Communicator(std::move(place)), world_(world), owned_(owned), cpus_(std::move(cpus)), thread_([this] {
          serve();
        }) {}

  ~MpiCommunicator() override {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    const Deadline deadline("the last operations before World's end");
    thread_.join();
    if (owned_) MPI_Comm_free(&world_);
  }

  std::string_view name() const override { return "mpi"; }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options) override {
    return enqueue(describe("all_reduce", label, buffer.bytes()),
                   [this, buffer, options = std::move(options)] {
                     mpi::all_reduce(world_, place(), buffer, finish_of(options, size()), scratch_);
                     if (options.then) options.then();
                   });
  }

  WorkHandle broadcast(Buffer buffer, int root, std::string_view label) override {
    return enqueue(describe("broadcast", label, buffer.bytes()), [this, buffer, root] {
      constexpr std::size_t kPiece = std::size_t{1} << 30;  // MPI counts in int
      auto* data = static_cast<std::byte*>(buffer.data);
      for (std::size_t begin = 0; begin < buffer.bytes(); begin += kPiece) {
        const auto bytes = static_cast<int>(std::min(kPiece, buffer.bytes() - begin));
        check(MPI_Bcast(data + begin, bytes, MPI_BYTE, root, world_), "MPI_Bcast");
      }
    });
  }

  WorkHandle all_gather(Buffer mine, void* all, std::string_view label) override {
    return enqueue(describe("all_gather", label, mine.bytes()), [this, mine, all] {
      const int bytes = bytes_of_part(mine);
      const bool in_place =
          mine.data == static_cast<std::byte*>(all) + mine.bytes() * static_cast<std::size_t>(rank());
      check(MPI_Allgather(in_place ? MPI_IN_PLACE : mine.data, bytes, MPI_BYTE, all, bytes, MPI_BYTE, world_),
            "MPI_Allgather");
    });
  }

  WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label, ReduceOptions options) override {
    return enqueue(describe("reduce_scatter", label, mine.bytes()),
                   [this, all, mine, options = std::move(options)] {
                     bytes_of_part(mine);
                     mpi::reduce_scatter(world_, place(), all, mine, finish_of(options, size()), scratch_);
                     if (options.then) options.then();
                   });
  }

  WorkHandle barrier(std::string_view label) override {
    return enqueue(describe("barrier", label, 0), [this] { check(MPI_Barrier(world_), "MPI_Barrier"); });
  }

  std::unique_ptr<Communicator> split(int color, std::string_view name) override {
    std::unique_ptr<Communicator> group;
    // On the communicator's thread, so that it takes its turn.
    enqueue(describe("split", name, 0), [&] {
      MPI_Comm part = MPI_COMM_NULL;
      check(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank(), &part), "MPI_Comm_split");
      if (part != MPI_COMM_NULL)
        group = std::make_unique<MpiCommunicator>(part, find_place(part), cpus_, true);
    })->wait();
    return group;
  }

 private:
  static int bytes_of_part(const Buffer& mine) {
    if (mine.bytes() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
      fail("a rank's part is limited to 2 GiB");
    }
    return static_cast<int>(mine.bytes());
  }

  WorkHandle enqueue(std::string name, std::function<void()> body) {
    auto operation = std::make_shared<Operation>(std::move(name), std::move(body));
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(operation);
    }
    changed_.notify_one();
    return operation;
  }

  void serve() {
    pthread_setname_np(pthread_self(), "lockstep-comm");
    if (!cpus_.empty()) bind_this_thread(cpus_);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto operation = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      operation->run();
      lock.lock();
    }
  }

  MPI_Comm world_;
  bool owned_;
  std::vector<int> cpus_;
  std::vector<std::byte> scratch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> queue_;
  bool ending_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const Session& session, std::vector<int> cpus) {
  return std::make_unique<MpiCommunicator>(session.world(), session.place(), std::move(cpus), false);
}

}  // namespace lockstep::comm::mpi
