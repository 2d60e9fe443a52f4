#include "runtime/comm/mpi/communicator.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
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
  MpiCommunicator(const Session& session, std::vector<int> cpus)
      : Communicator(session.place()),
        world_(session.world()),
        thread_([this, cpus = std::move(cpus)] { serve(cpus); }) {}

  ~MpiCommunicator() override {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    const Deadline deadline("the last operations before World's end");
    thread_.join();
  }

  std::string_view name() const override { return "mpi"; }

  WorkHandle all_reduce(Buffer buffer, std::string_view label, AllReduceOptions options) override {
    return enqueue(
        describe("all_reduce", label, buffer.bytes()), [this, buffer, options = std::move(options)] {
          const auto scale = options.scale == nullptr ? std::nullopt : std::optional<double>(*options.scale);
          mpi::all_reduce(world_, place(), buffer, options.op, scale, scratch_);
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
      if (mine.bytes() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
        fail("a rank's part is limited to 2 GiB");
      }
      const auto bytes = static_cast<int>(mine.bytes());
      check(MPI_Allgather(mine.data, bytes, MPI_BYTE, all, bytes, MPI_BYTE, world_), "MPI_Allgather");
    });
  }

  WorkHandle barrier(std::string_view label) override {
    return enqueue(describe("barrier", label, 0), [this] { check(MPI_Barrier(world_), "MPI_Barrier"); });
  }

 private:
  WorkHandle enqueue(std::string name, std::function<void()> body) {
    auto operation = std::make_shared<Operation>(std::move(name), std::move(body));
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(operation);
    }
    changed_.notify_one();
    return operation;
  }

  void serve(const std::vector<int>& cpus) {
    pthread_setname_np(pthread_self(), "lockstep-comm");
    if (!cpus.empty()) bind_this_thread(cpus);
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
  std::vector<std::byte> scratch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> queue_;
  bool ending_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const Session& session, std::vector<int> cpus) {
  return std::make_unique<MpiCommunicator>(session, std::move(cpus));
}

}  // namespace lockstep::comm::mpi
