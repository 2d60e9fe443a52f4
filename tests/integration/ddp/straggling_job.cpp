// A small training job with a fault. stragglers_test and verdict_test start it and look at its records.
//
//   mpirun -np 2 straggling_job FAULT [RANK]
//
// FAULT: none; hog (another process on the rank's core); long (as many tokens in fewer and longer samples); link (the rank's
// messages leave late); reads (its batches come late); checkpoint (it alone writes, slowly); memory (it keeps 4 MB more in
// each step, for ever); input (the batches of all ranks come late).
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/profile/step_timer.h"

namespace {

using lockstep::profile::Phase;

constexpr int kSteps = 60;
constexpr std::int64_t kTokens = 2048;  // per rank and step
constexpr std::int64_t kWidth = 64;

std::atomic<int> link_delay_ms{0};

// Attention within each sample, so a long sample costs more than short ones with as many tokens.
struct AttentionImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& samples) {
    const auto hidden = torch::relu(first(samples));
    const auto scores = torch::matmul(hidden, hidden.transpose(1, 2)).softmax(-1);
    return second(torch::matmul(scores, hidden));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Attention);

// The rank's own core, so that only this rank shares it with the other process.
void bind_to_core(int rank) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int skip = rank % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    CPU_ZERO(&allowed);
    CPU_SET(cpu, &allowed);
    sched_setaffinity(0, sizeof(allowed), &allowed);
    return;
  }
}

// Ends with this process. Starts before MPI, whose processes must not fork.
void start_hog() {
  if (::fork() != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (std::atomic<unsigned> turns = 0;;) ++turns;
}

// Reads each step's batch when it is asked for, as a loader without workers does.
class Reader {
 public:
  Reader(std::int64_t samples, std::chrono::milliseconds latency, int steps)
      : latency_(latency), steps_(steps), batch_(torch::rand({samples, kTokens / samples, kWidth})) {}
  Reader& begin() { return *this; }
  Reader& end() { return *this; }
  Reader& operator++() {
    ++step_;
    std::this_thread::sleep_for(latency_);
    return *this;
  }
  torch::Tensor& operator*() { return batch_; }
  bool operator!=(const Reader& /*end*/) const { return step_ < steps_; }

 private:
  std::chrono::milliseconds latency_;
  int steps_;
  int step_ = 0;
  torch::Tensor batch_;
};

}  // namespace

// All messages of MPI's point-to-point calls pass here: the delay of a link.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  std::this_thread::sleep_for(std::chrono::milliseconds(link_delay_ms));
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "none";
  const int faulty = argc > 2 ? std::atoi(argv[2]) : 0;
  const char* own = std::getenv("OMPI_COMM_WORLD_RANK");
  if (own == nullptr) throw std::runtime_error("straggling_job needs mpirun");
  const bool mine = std::atoi(own) == faulty;
  bind_to_core(std::atoi(own));
  // Other programs on the machine must not look like faults, so root gives the job's session a high priority.
  ::setpriority(PRIO_PROCESS, 0, -15);
  std::ofstream("/proc/self/autogroup") << -15;
  if (mine && fault == "hog") start_hog();

  lockstep::World world(argc, argv);
  Attention model;
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const std::int64_t samples = mine && fault == "long" ? 8 : 64;
  const bool reads_late = fault == "input" || (mine && fault == "reads");
  Reader reader(samples, std::chrono::milliseconds(reads_late ? 25 : 0),
                fault == "memory" ? std::numeric_limits<int>::max() : kSteps);
  std::vector<torch::Tensor> kept;
  if (mine && fault == "link") link_delay_ms = 10;
  int step = 0;
  for (auto& batch : lockstep::profile::timed_batches(world.timer(), reader)) {
    ddp.backward((ddp(batch) - batch).square().sum(), kTokens);
    {
      const auto scope = world.timer().phase(Phase::optimizer);
      optimizer.step();
      optimizer.zero_grad();
    }
    if (mine && fault == "memory") kept.push_back(torch::ones({1 << 20}));
    if (mine && fault == "checkpoint" && ++step % 10 == 0) {
      const auto scope = world.timer().phase(Phase::checkpoint);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    world.timer().end_step({.tokens = kTokens, .samples = static_cast<std::uint64_t>(samples), .padding = 0});
  }
  link_delay_ms = 0;
}
