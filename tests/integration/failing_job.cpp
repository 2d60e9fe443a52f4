// A job in which the last rank goes wrong in the way named on the command line. failure_test starts it under
// mpirun.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/error.h"
#include "runtime/comm/world.h"

namespace {

void meet(lockstep::World& world, const char* label) {
  float value = 1;
  world.communicator().all_reduce({&value, 1, lockstep::comm::DataType::f32}, label)->wait();
}

void go_wrong(const std::string& how) {
  if (how == "throw" || how == "caught") lockstep::fail("sample 17 of shard-000003.tar is broken");
  if (how == "exit") std::exit(0);
  if (how == "killed") std::raise(SIGKILL);
  if (how == "stopped") std::raise(SIGSTOP);
  if (how == "forks") {
    const pid_t child = fork();
    if (child == 0) std::exit(0);
    waitpid(child, nullptr, 0);
  }
}

// Each rank asks for what the next one would have to send, and waits for nothing.
void ask_for_what_never_comes(lockstep::World& world) {
  static float value = 1;
  const int next = (world.rank() + 1) % world.size();
  world.communicator().broadcast({&value, 1, lockstep::comm::DataType::f32}, next, "nothing");
}

void work(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "well";
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (how == "no-start" && rank != nullptr && std::string(rank) == "1") {
    setenv("SLURM_JOB_ID", "none", 1);  // World needs a number
  }
  lockstep::World world(argc, argv);
  meet(world, "the start");
  if (world.rank() == world.size() - 1) {
    if (how == "leaves") return;
    go_wrong(how);
  }
  meet(world, "bucket 7");
  if (how == "unmatched") ask_for_what_never_comes(world);
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
  work(argc, argv);
  if (how == "afterwards") lockstep::fail("the report cannot be written");
  return 0;
}
