#include "plugin/spank/staging/helper_cpus.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string_view>

#include "common/leaf/cpu_list.h"
#include "common/leaf/error.h"
#include "common/leaf/split.h"

namespace lockstep::spank {
namespace {

std::vector<int> without(const std::vector<int>& cpus, const std::vector<int>& excluded) {
  std::vector<int> rest;
  std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(rest),
               [&](int cpu) { return std::find(excluded.begin(), excluded.end(), cpu) == excluded.end(); });
  return rest;
}

// Whether Slurm gives CPUs to this process's job or step. A line of `groups` is NUMBER:CONTROLLERS:PATH. Version 1 has a group
// for CPUs only where Slurm confines steps; version 2 has it in any case, without CPUs in it where Slurm does not.
bool has_cpus_from_slurm(const std::string& groups, const std::string& root) {
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string_view> fields = split(line, ':');
    if (fields.size() != 3) continue;
    std::string path(fields[2]);
    const std::vector<std::string_view> controllers = split(fields[1], ',');
    const bool version_1 = std::find(controllers.begin(), controllers.end(), "cpuset") != controllers.end();
    if (!version_1 && !fields[1].empty()) continue;
    for (; path.find("/job_") != std::string::npos; path.resize(path.rfind('/'))) {
      std::string cpus;
      std::ifstream file(root + path + "/cpuset.cpus");
      if (version_1 || (std::getline(file, cpus) && !cpus.empty())) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<int> step_cpus(std::uint32_t granted, const std::string& groups, const std::string& root) {
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
  const bool known = static_cast<long>(possible.size()) < online || static_cast<long>(granted) >= online ||
                     has_cpus_from_slurm(groups, root);
  return known ? possible : std::vector<int>{};
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
