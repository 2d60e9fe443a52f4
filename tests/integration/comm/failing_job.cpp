// A job in which one rank fails in the way named on the command line: failing_job HOW [RANK]; the default is
// the last rank. failure_test starts it under mpirun, tests/cluster/hangs_test.sh on two nodes.
#include <linux/filter.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "runtime/comm/control/control_channel.h"
#include "runtime/comm/world.h"

namespace {

using lockstep::comm::DataType;

void meet(lockstep::World& world, const char* label) {
  float value = 1;
  world.communicator().all_reduce({&value, 1, DataType::f32}, label)->wait();
}

void do_steps(lockstep::World& world, int steps) {
  for (int step = 0; step < steps; ++step) {
    meet(world, "bucket 0");
    meet(world, "bucket 1");
    world.communicator().barrier("step")->wait();
  }
}

// Runs until the job is ended from outside.
void run_on(lockstep::World& world) {
  std::vector<float> values(std::size_t{1} << 20);
  if (world.rank() == 0) {
    std::puts("running");
    std::fflush(stdout);
  }
  for (;;) {
    world.communicator().all_reduce({values.data(), values.size(), DataType::f32}, "bucket 7")->wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void sum_many(lockstep::World& world, std::size_t count) {
  std::vector<float> values(count);
  world.communicator().all_reduce({values.data(), count, DataType::f32}, "bucket 7")->wait();
}

void die_inside_an_operation(lockstep::World& world) {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::raise(SIGKILL);
  }).detach();
  run_on(world);
}

// As a node that loses power: nothing that arrives over TCP is answered, and this side does not ask.
void stop_answering() {
  const int off = 0;
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop};
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int protocol = 0;
    socklen_t length = sizeof protocol;
    if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) != 0 || protocol != IPPROTO_TCP)
      continue;
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
    ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  }
}

// Rank 0 can open two more files from now on, whatever it asks for.
void take_descriptors() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) return;
  const int first = ::dup(STDERR_FILENO);
  const int second = ::dup(STDERR_FILENO);
  ::close(first);
  ::close(second);
  const auto count = static_cast<rlim_t>(second + 1);
  const rlimit limit{count, count};
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Wakes the control channel of rank 0 twice: when it has read the second note, it has waited once in between.
void wake_control_channel() {
  auto* const channel = lockstep::comm::ControlChannel::current();
  for (const char* note : {"first", "second"}) {
    channel->tell_rank_0(note);
    while (channel->last_text_of(0) != note) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Every poll() of more than one descriptor fails from now on.
void break_poll() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 1;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  wake_control_channel();
}

void go_wrong(lockstep::World& world, const std::string& how) {
  lockstep::comm::Communicator& all = world.communicator();
  std::vector<double> values(8);
  if (how == "throw" || how == "caught") lockstep::fail("sample 17 of shard-000003.tar is broken");
  if (how == "exit") std::exit(0);
  if (how == "open-files") {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    std::printf("%ju\n", static_cast<std::uintmax_t>(limit.rlim_cur));
  }
  if (how == "quick-exit") _exit(0);
  if (how == "killed") std::raise(SIGKILL);
  if (how == "killed-inside") die_inside_an_operation(world);
  if (how == "stopped") std::raise(SIGSTOP);
  if (how == "unreachable") stop_answering();
  if (how == "unreachable" || how == "poll-fails" || how == "busy")
    std::this_thread::sleep_for(std::chrono::hours(1));
  if (how == "other-operation") all.barrier("evaluation")->wait();
  if (how == "other-count") all.all_reduce({values.data(), 3, DataType::f32}, "bucket 7")->wait();
  if (how == "other-size") sum_many(world, 1'000'000);
  if (how == "other-type") all.all_reduce({values.data(), 1, DataType::f64}, "bucket 7")->wait();
  if (how == "other-label") all.all_reduce({values.data(), 1, DataType::f32}, "bucket 8")->wait();
  if (how == "other-step") {
    all.set_step(17);
    meet(world, "bucket 7");
  }
  if (how == "more-steps") do_steps(world, 1);
  if (how == "forks") {
    const pid_t child = fork();
    if (child == 0) std::exit(0);
    waitpid(child, nullptr, 0);
  }
  if (how == "killed-with-child") {
    if (fork() == 0) {  // outlives its rank
      std::this_thread::sleep_for(std::chrono::seconds(3));
      _exit(0);
    }
    std::raise(SIGKILL);
  }
}

// Each rank starts a broadcast from the next rank and does not wait for it, so no two of them match.
void start_unmatched_broadcasts(lockstep::World& world) {
  static float value = 1;
  const int next = (world.rank() + 1) % world.size();
  world.communicator().broadcast({&value, 1, DataType::f32}, next, "nothing");
}

void work(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "well";
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (how == "no-start" && rank != nullptr && std::string(rank) == "1") {
    setenv("SLURM_JOB_ID", "none", 1);  // World needs a number
  }
  if (how == "late-start" && rank != nullptr && std::string(rank) == "1") {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  lockstep::World world(argc, argv);
  const int wrong = argc > 2 ? std::atoi(argv[2]) : world.size() - 1;
  meet(world, "the start");
  do_steps(world, 3);
  if (how == "runs") run_on(world);
  if (how == "world-exit") {
    if (world.rank() == 0) std::printf("not flushed by the program");
    world.exit(75);
  }
  if (how == "own-mpi" && world.rank() != wrong) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (how == "own-mpi") return;
  if (how == "late" && world.rank() == wrong) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (how == "other-length") sum_many(world, world.rank() == wrong ? 30'000 : 20'000);
  if (world.rank() == wrong) {
    if (how == "leaves") return;
    go_wrong(world, how);
  }
  if (how == "poll-fails") break_poll();
  if (how == "killed-inside") run_on(world);
  if (how == "more-steps") return;
  meet(world, "bucket 7");
  if (how == "unmatched") start_unmatched_broadcasts(world);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "well";
  if (how == "caught" || how == "no-start") {
    try {
      work(argc, argv);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "training failed: %s\n", error.what());
      return 3;
    }
    return 0;
  }
  if (how == "own-mpi" ||
      how ==
          "few-descriptors") {  // World does not finalise it then, so ranks may leave World at different times
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  }
  if (how == "few-descriptors") take_descriptors();
  work(argc, argv);
  if (how == "own-mpi" || how == "few-descriptors") MPI_Finalize();
  if (how == "afterwards") lockstep::fail("the report cannot be written");
  return 0;
}
