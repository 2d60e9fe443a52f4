#include "plugin/affinity/processes.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/number.h"

namespace lockstep::affinity {
namespace {

namespace fs = std::filesystem;

constexpr int kLastCpuField = 36;  // field 39 of stat; 0 is the state, after the name

// The file's text; "" if the process or thread has ended or may not be read.
std::string read_if_there(const fs::path& path) {
  try {
    return read_text_file(path);
  } catch (const Error&) {
    return {};
  }
}

std::string field(const std::string& status, const std::string& name) {
  const auto at = status.find("\n" + name + ":\t");
  if (at == std::string::npos) return {};
  const auto begin = at + name.size() + 3;
  return status.substr(begin, status.find('\n', begin) - begin);
}

int last_cpu(const std::string& stat) {
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string value;
  for (int i = 0; i <= kLastCpuField; ++i) fields >> value;
  return fields ? to_number<pid_t>(value).value_or(0) : -1;
}

std::string command_of(const fs::path& folder) {
  std::string command = read_if_there(folder / "cmdline");
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  return command;
}

// Each line is a mapping: its address, its policy, and fields such as "N1=25", which count pages of the size at the end.
void read_memory(const fs::path& folder, ProcessView& view) {
  std::istringstream lines(read_if_there(folder / "numa_maps"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string address;
    std::string policy;
    words >> address >> policy;
    std::map<int, std::uint64_t> pages;
    std::uint64_t page = 4096;
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      if (equals == std::string::npos) continue;
      const int node = word.front() == 'N' ? to_number<pid_t>(word.substr(1, equals - 1)).value_or(0) : -1;
      const std::uint64_t value = std::strtoull(word.c_str() + equals + 1, nullptr, 10);
      if (node >= 0) pages[node] += value;
      if (word.starts_with("kernelpagesize_kB=")) page = value * 1024;
    }
    for (const auto& [node, count] : pages) {
      view.node_bytes[node] += count * page;
      view.policy_bytes[policy] += count * page;
    }
  }
}

}  // namespace

ProcessView view_process(pid_t pid) {
  const fs::path folder = fs::path("/proc") / std::to_string(pid);
  ProcessView view{pid, command_of(folder), {}, {}, {}};
  read_memory(folder, view);
  struct Seen {
    int threads = 0;
    std::set<int> last;
  };
  std::map<std::string, Seen> by_mask;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator(folder / "task", error)) {
    const std::string mask = field(read_if_there(thread.path() / "status"), "Cpus_allowed_list");
    if (mask.empty()) continue;
    Seen& seen = by_mask[mask];
    ++seen.threads;
    const int cpu = last_cpu(read_if_there(thread.path() / "stat"));
    if (cpu >= 0) seen.last.insert(cpu);
  }
  if (by_mask.empty()) fail("process {} does not exist or may not be read", pid);
  for (const auto& [mask, seen] : by_mask)
    view.groups.push_back({mask, {seen.last.begin(), seen.last.end()}, seen.threads});
  return view;
}

}  // namespace lockstep::affinity
