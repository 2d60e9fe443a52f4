// A job with a device in which the last rank fails in the way named on the command line: failing_device_job FAULT.
// failure_test starts it.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include "runtime/comm/world.h"
#include "tests/device/simulation.h"

extern "C" void __gcov_dump();

namespace {

using lockstep::comm::DataType;

// Suspends rank 0 while its device waits for this rank, as the whole job would be, for longer than LOCKSTEP_TIMEOUT. Both
// ranks call it.
void suspend_rank_0(lockstep::World& world) {
  std::int64_t process = ::getpid();
  auto& all = world.communicator();
  all.broadcast({&process, 1, DataType::i64}, 0, "the process of rank 0")->wait();
  if (world.rank() == 0) return;
  const auto state = [&] {
    std::ifstream status("/proc/" + std::to_string(process) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(status), {}};
    return text.at(text.rfind(')') + 2);
  };
  ::kill(static_cast<pid_t>(process), SIGSTOP);
  while (state() != 'T') std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  ::kill(static_cast<pid_t>(process), SIGCONT);
}

}  // namespace

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
    all.all_reduce({memory.get(), 1024, DataType::f32}, label);
    all.barrier("step")->wait();
  };
  reduce("bucket 0");
  if (how == "suspended") {
    // Rank 0's device begins before it is suspended, the other one afterwards.
    if (world.rank() == 0) all.all_reduce({memory.get(), 1024, DataType::f32}, "bucket 1");
    suspend_rank_0(world);
    if (world.rank() != 0) all.all_reduce({memory.get(), 1024, DataType::f32}, "bucket 1");
    all.barrier("step")->wait();
    return 0;
  }
  if (!how.empty()) go_wrong();
  reduce("bucket 1");
  return 0;
}
