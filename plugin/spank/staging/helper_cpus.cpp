#include "plugin/spank/staging/helper_cpus.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/leaf/cpu_list.h"
#include "common/leaf/error.h"

namespace lockstep::spank {
namespace {

std::vector<int> without(const std::vector<int>& cpus, const std::vector<int>& excluded) {
  std::vector<int> rest;
  std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(rest),
               [&](int cpu) { return std::find(excluded.begin(), excluded.end(), cpu) == excluded.end(); });
  return rest;
}

}  // namespace

std::vector<int> step_cpus(std::uint32_t granted) {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  std::vector<int> possible;
  try {
    const std::vector<int> bound = cpus_of_this_thread();
    std::vector<int> all(kMaxCpus);
    std::iota(all.begin(), all.end(), 0);
    bind_this_thread(all);  // the kernel reduces it to the CPUs of the control group
    possible = cpus_of_this_thread();
    bind_this_thread(bound);
  } catch (const Error&) {
    return {};
  }
  const bool confined = static_cast<long>(possible.size()) < online;
  return confined || static_cast<long>(granted) >= online ? possible : std::vector<int>{};
}

std::vector<int> spare_cpus(const std::vector<int>& step, const std::vector<int>& of_tasks,
                            const std::vector<int>& computing) {
  for (const auto& taken : {of_tasks, computing}) {
    std::vector<int> free = without(step, taken);
    if (!free.empty()) return free;
  }
  return step;
}

}  // namespace lockstep::spank
