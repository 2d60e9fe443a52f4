// A job in which the last rank goes wrong in the way named on the command line. failure_test starts it under
// mpirun.
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
}

void work(int argc, char** argv) {
  lockstep::World world(argc, argv);
  const std::string how = argc > 1 ? argv[1] : "well";
  meet(world, "the start");
  if (world.rank() == world.size() - 1) {
    if (how == "leaves") return;
    go_wrong(how);
  }
  meet(world, "bucket 7");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "caught") {
    try {
      work(argc, argv);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "training failed: %s\n", error.what());
      return 3;
    }
    return 0;
  }
  work(argc, argv);
  return 0;
}
