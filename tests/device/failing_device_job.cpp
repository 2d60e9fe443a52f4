// A job with a device in which the last rank fails in the way named on the command line: failing_device_job FAULT.
// failure_test starts it.
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <string>

#include "runtime/comm/world.h"
#include "tests/device/simulation.h"

extern "C" void __gcov_dump();

// The job's end comes here. It would lose the counts of the lines that ran.
extern "C" void _exit(int code) {
  __gcov_dump();
  ::syscall(SYS_exit_group, code);
  __builtin_unreachable();
}

int main(int argc, char** argv) {
  using lockstep::simulated::Fault;
  const std::map<std::string, Fault> faults{{"device", Fault::device},
                                            {"collective", Fault::collective},
                                            {"absence", Fault::absence},
                                            {"setup", Fault::setup}};
  lockstep::World world(argc, argv);
  const std::string how = argc > 1 ? argv[1] : "";
  const auto go_wrong = [&] {
    // The barrier is the second collective. While the host waits for it, only the watchdog sees NCCL's error.
    if (world.rank() == world.size() - 1)
      lockstep::simulated::inject(faults.at(how), how == "collective" ? 2 : 1);
  };
  if (how == "setup") go_wrong();
  auto& all = world.communicator_of_device(world.local_rank());
  const auto memory = all.allocate(4096);
  const auto reduce = [&](const char* label) {
    all.all_reduce({memory.get(), 1024, lockstep::comm::DataType::f32}, label);
    all.barrier("step")->wait();
  };
  reduce("bucket 0");
  if (!how.empty()) go_wrong();
  reduce("bucket 1");
  return 0;
}
