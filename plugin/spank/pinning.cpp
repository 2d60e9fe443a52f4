#include "plugin/spank/pinning.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <sstream>

#include "plugin/spank/gpus.h"
#include "plugin/spank/process.h"
#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

std::string field(const std::string& text) {
  return text == "-" ? "" : text;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

using Clock = std::chrono::steady_clock;

// For all calls together. A node with many GPUs whose driver sleeps takes seconds to be looked at.
constexpr std::chrono::seconds kPatience{10};

Outcome ask(const std::vector<std::string>& arguments, Clock::time_point end) {
  Command command;
  command.arguments = arguments;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  Outcome outcome = capture(command, std::max(left, std::chrono::milliseconds(0)));
  if (!outcome.in_time) {
    throw Refusal("lockstep-pin did not end within " + std::to_string(kPatience.count()) +
                  " s and was killed");
  }
  return outcome;
}

// The plan holds whether or not it can be explained.
void explain(const std::vector<std::string>& arguments, const std::string& node, Clock::time_point end) {
  const std::string prefix = node + ": pin: ";
  try {
    std::istringstream lines(ask(arguments, end).output);
    for (std::string line; std::getline(lines, line);) say(prefix + line);
  } catch (const Refusal& refusal) {
    say(prefix + "cannot explain the plan: " + refusal.what());
  }
}

}  // namespace

std::vector<Placement> parse_plan(const std::string& text, std::size_t tasks) {
  std::vector<Placement> placements;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::size_t task = 0;
    std::string cpus;
    std::string workers;
    std::string numa;
    int threads = 0;
    if (!(fields >> task >> cpus >> workers >> numa >> threads) || task != placements.size() || threads < 0) {
      throw Refusal("lockstep-pin printed what is no plan: '" + line + "'");
    }
    std::string gpus = "-";
    fields >> gpus;
    placements.push_back({field(cpus), field(workers), field(numa), field(gpus), threads});
    parse_cpus(placements.back().cpus);
    parse_cpus(placements.back().workers);
  }
  if (placements.size() != tasks) {
    throw Refusal("lockstep-pin planned for " + std::to_string(placements.size()) + " tasks, not " +
                  std::to_string(tasks));
  }
  return placements;
}

std::vector<std::string> plan_arguments(const Config& config, const PinRequest& pin, const Granted& granted) {
  std::vector<std::string> arguments{config.helpers + "/lockstep-pin", "plan"};
  const auto add = [&](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  add("--tasks", std::to_string(granted.tasks));
  add("--restrict", granted.cpus);
  add("--policy", pin.policy);
  add("--mem", pin.memory);
  if (pin.workers) add("--workers", std::to_string(*pin.workers));
  if (pin.smt) add("--smt", std::to_string(*pin.smt));
  if (granted.cpus_per_task > 0) add("--cpus-per-task", std::to_string(granted.cpus_per_task));
  if (!granted.gpus.empty()) add("--gpus", granted.gpus);
  return arguments;
}

void plan_node(NodeTasks& tasks, const Config& config, const PinRequest& pin, const std::string& node,
               int cpus_per_task) {
  Granted granted{tasks.size(), tasks.all_cpus(kSecondsForTasks), cpus_per_task, ""};
  if (granted.cpus.empty()) {
    throw Refusal("not all of the step's tasks started within " + std::to_string(kSecondsForTasks) + " s");
  }
  std::vector<std::vector<std::string>> gpus;
  for (const std::string& list : tasks.all_gpus()) gpus.push_back(split_list(list));
  granted.gpus = list_for_plan(gpus);

  const Clock::time_point end = Clock::now() + kPatience;
  const auto plan = [&] {
    std::vector<std::string> arguments = plan_arguments(config, pin, granted);
    arguments.emplace_back("--plain");
    return ask(arguments, end);
  };
  Outcome outcome = plan();
  if (outcome.exit_code != 0 && !granted.gpus.empty()) {
    // A device that the topology does not show must not cost the tasks their cores.
    say(node + ": pin: without the GPUs: " + first_line(outcome.error));
    granted.gpus.clear();
    outcome = plan();
  }
  if (outcome.exit_code != 0) {
    throw Refusal(outcome.error.empty()
                      ? "lockstep-pin ended with exit code " + std::to_string(outcome.exit_code)
                      : first_line(outcome.error));
  }
  tasks.put_placements(parse_plan(outcome.output, tasks.size()));
  if (pin.explain) explain(plan_arguments(config, pin, granted), node, end);
}

void bind(const Placement& placement) {
  cpu_set_t both = parse_cpus(placement.cpus);
  const cpu_set_t workers = parse_cpus(placement.workers);
  CPU_OR(&both, &both, &workers);
  if (::sched_setaffinity(0, sizeof both, &both) != 0) {
    throw Refusal("cannot run on CPUs " + format_cpus(both) + ": " + errno_text(errno));
  }
}

void interleave_memory(const Placement& placement) {
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h, which is not everywhere
  constexpr unsigned long kBits = 8 * sizeof(unsigned long);
  const cpu_set_t numbers = parse_cpus(placement.numa);
  if (CPU_COUNT(&numbers) == 0) return;
  std::array<unsigned long, CPU_SETSIZE / kBits> nodes{};
  for (std::size_t node = 0; node < CPU_SETSIZE; ++node) {
    if (CPU_ISSET(node, &numbers)) nodes.at(node / kBits) |= 1UL << (node % kBits);
  }
  if (::syscall(SYS_set_mempolicy, kInterleave, nodes.data(), CPU_SETSIZE + 1) != 0) {
    throw Refusal("cannot take memory from NUMA nodes " + placement.numa + " in turn: " + errno_text(errno));
  }
}

std::string openmp_places(const std::string& cpus, const std::function<std::string(int)>& siblings) {
  cpu_set_t left = parse_cpus(cpus);
  std::string places;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &left)) continue;
    std::string place;
    const cpu_set_t core = parse_cpus(siblings(cpu));
    for (int thread = cpu; thread < CPU_SETSIZE; ++thread) {
      if (!CPU_ISSET(thread, &left) || (thread != cpu && !CPU_ISSET(thread, &core))) continue;
      place += (place.empty() ? "" : ",") + std::to_string(thread);
      CPU_CLR(thread, &left);
    }
    places += (places.empty() ? "{" : ",{") + place + "}";
  }
  return places;
}

std::string siblings_here(int cpu) {
  const std::string path =
      "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::to_string(cpu);
  std::array<char, 256> buffer{};
  const ssize_t got = ::read(fd, buffer.data(), buffer.size() - 1);
  ::close(fd);
  return got > 0 ? first_line(std::string(buffer.data(), static_cast<std::size_t>(got)))
                 : std::to_string(cpu);
}

}  // namespace lockstep::spank
