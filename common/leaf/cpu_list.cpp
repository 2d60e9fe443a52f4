#include "common/leaf/cpu_list.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/leaf/error.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(std::string_view list, std::string_view part, const char* why) {
  throw UsageError("CPU list '" + std::string(list) + "': '" + std::string(part) + "' " + why);
}

int parse_cpu(std::string_view text, std::string_view whole) {
  const int value = to_number<int>(text).value_or(-1);
  if (value < 0 || value >= kMaxCpus) refuse(whole, text, "is not a CPU number");
  return value;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  std::string_view rest = text;
  while (!rest.empty() && (rest.back() == '\n' || rest.back() == ' ')) rest.remove_suffix(1);
  if (rest.empty()) return cpus;
  for (const std::string_view part : split(rest, ',')) {
    const auto dash = part.find('-');
    const int first = parse_cpu(part.substr(0, dash), text);
    const int last = dash == std::string_view::npos ? first : parse_cpu(part.substr(dash + 1), text);
    if (last < first) refuse(text, part, "ends before it begins");
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string format_cpu_list(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (last > i) text += "-" + std::to_string(cpus[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> cpus_of_this_thread() {
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  if (cpus.empty()) throw Error("cannot read this thread's CPU mask: " + errno_text(errno));
  return cpus;
}

void bind_this_thread(const std::vector<int>& cpus) {
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
  const int result = sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
  if (result != 0) throw Error("cannot bind to CPUs " + format_cpu_list(cpus) + ": " + errno_text(errno));
}

void interleave_memory(const std::vector<int>& nodes) {
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h, which some systems lack
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  if (nodes.empty()) return;
  std::array<unsigned long, kMaxCpus / kBits> mask{};
  for (const int number : nodes) {
    const auto node = static_cast<std::size_t>(number);
    mask.at(node / kBits) |= 1UL << (node % kBits);
  }
  if (::syscall(SYS_set_mempolicy, kInterleave, mask.data(), kMaxCpus + 1) != 0)
    throw Error("cannot interleave memory over NUMA nodes " + format_cpu_list(nodes) + ": " +
                errno_text(errno));
}

}  // namespace lockstep
