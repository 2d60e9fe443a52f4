#include "common/background_cpus.h"

#include <exception>

#include "common/environment.h"
#include "common/leaf/cpu_list.h"

namespace lockstep {
namespace {

std::vector<int> cpus_in(const char* variable) {
  const auto list = environment::get(variable);
  return list ? parse_cpu_list(*list) : std::vector<int>();
}

}  // namespace

std::vector<int> worker_cpus() {
  return cpus_in("LOCKSTEP_WORKER_CPUS");
}

std::vector<int> background_cpus() {
  std::vector<int> workers = worker_cpus();
  return workers.empty() ? cpus_in("LOCKSTEP_CPUS") : workers;
}

void use_background_cpus() noexcept {
  try {
    const std::vector<int> cpus = background_cpus();
    if (!cpus.empty()) bind_this_thread(cpus);
  } catch (const std::exception&) {
    // The work is also done where the thread is.
  }
}

}  // namespace lockstep
