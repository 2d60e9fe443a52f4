#include "common/job_limits.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "common/error.h"
#include "common/units.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The names of a version of cgroups.
struct Version {
  const char* limit;
  const char* used;
  const char* file_cache[2];  // entries of memory.stat that the kernel gives up first
};
constexpr Version kVersion1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr Version kVersion2{"memory.max", "memory.current", {"inactive_file", "active_file"}};

// Without a number ("max", or no such file): nullopt.
std::optional<std::size_t> read_number(const fs::path& file) {
  std::size_t number = 0;
  if (std::ifstream(file) >> number) return number;
  return std::nullopt;
}

std::size_t sum_of_entries(const fs::path& file, std::initializer_list<std::string_view> names) {
  std::ifstream entries(file);
  std::size_t sum = 0;
  std::string name;
  for (std::size_t value = 0; entries >> name >> value;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += value;
  }
  return sum;
}

std::optional<std::size_t> bytes_of_node(const fs::path& meminfo, std::string_view entry) {
  std::ifstream lines(meminfo);
  std::string name;
  std::size_t kib = 0;
  while (lines >> name >> kib) {
    if (name == entry) return kib << 10U;
    lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Calls `look(folder, second_version)` for this process's group of a controller and for all groups above it, because
// their limits hold too.
template <typename Look>
void each_group(const fs::path& proc, const fs::path& cgroups, const std::string& controller,
                const Look& look) {
  // "0::/system.slice/job_7" (v2) or "4:memory:/slurm/job_7" (v1)
  std::ifstream lines(proc / "self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool second_version = controllers == ",,";
    if (!second_version && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path root = second_version ? cgroups : cgroups / controller;
    // In a container the path may be one of the host's, which is not visible here; then the root is the container's own
    // group.
    fs::path group = root / fs::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      look(group, second_version);
      if (group == root || group.native().size() <= root.native().size()) break;
    }
  }
}

void consider(MemoryLimit& lowest, const fs::path& group, const Version& version) {
  const auto limit = read_number(group / version.limit);
  const auto used = read_number(group / version.used);
  if (!limit || !used) return;
  const std::size_t cache =
      sum_of_entries(group / "memory.stat", {version.file_cache[0], version.file_cache[1]});
  const std::size_t needed = *used - std::min(cache, *used);
  const std::size_t available = *limit - std::min(needed, *limit);
  if (available >= lowest.available) return;
  lowest = {
      .available = available,
      .of = fmt::format("the cgroup {} ({} is {})", group.string(), version.limit, format_bytes(*limit))};
}

}  // namespace

MemoryLimit available_memory(const fs::path& proc, const fs::path& cgroups) {
  MemoryLimit lowest{
      .available =
          bytes_of_node(proc / "meminfo", "MemAvailable:").value_or(std::numeric_limits<std::size_t>::max()),
      .of = "this node"};
  each_group(proc, cgroups, "memory", [&](const fs::path& group, bool second_version) {
    consider(lowest, group, second_version ? kVersion2 : kVersion1);
  });
  return lowest;
}

JobLimits job_limits(const fs::path& proc, const fs::path& cgroups) {
  JobLimits limits{.memory_bytes = bytes_of_node(proc / "meminfo", "MemTotal:").value_or(0)};
  each_group(proc, cgroups, "memory", [&](const fs::path& group, bool second_version) {
    const auto limit = read_number(group / (second_version ? kVersion2 : kVersion1).limit);
    if (!limit || (limits.memory_bytes != 0 && *limit >= limits.memory_bytes)) return;
    struct stat status = {};
    limits.memory_bytes = *limit;
    limits.memory_group = ::stat(group.c_str(), &status) == 0 ? status.st_ino : 0;
  });
  each_group(proc, cgroups, "cpu", [&](const fs::path& group, bool second_version) {
    double quota = 0;
    double period = 0;
    if (second_version) {
      std::ifstream(group / "cpu.max") >> quota >> period;  // "max 100000" without a limit
    } else {
      std::ifstream(group / "cpu.cfs_quota_us") >> quota;  // -1 without a limit
      std::ifstream(group / "cpu.cfs_period_us") >> period;
    }
    if (quota <= 0 || period <= 0) return;
    limits.cpus = limits.cpus == 0 ? quota / period : std::min(limits.cpus, quota / period);
  });
  return limits;
}

std::string full_process_group(const fs::path& proc, const fs::path& cgroups) {
  std::string full;
  each_group(proc, cgroups, "pids", [&](const fs::path& group, bool /*second_version*/) {
    const auto limit = read_number(group / "pids.max");
    if (full.empty() && limit && read_number(group / "pids.current").value_or(0) >= *limit)
      full = fmt::format("the cgroup {} has its {} processes and threads (pids.max)", group.string(), *limit);
  });
  return full;
}

}  // namespace lockstep
