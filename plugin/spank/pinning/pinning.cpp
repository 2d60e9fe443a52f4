#include "plugin/spank/pinning/pinning.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "common/leaf/cpu_list.h"
#include "common/leaf/text.h"
#include "plugin/spank/process/process.h"
#include "plugin/spank/process/report.h"

namespace lockstep::spank {
namespace {

constexpr std::size_t kMaxGpus = 1024;

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<std::string_view> items = split(text, ',');
  return {items.begin(), items.end()};
}

std::vector<std::string> gpus_of_task(const std::string& visible, const std::string& of_step) {
  const std::vector<std::string> numbers = split_list(visible);
  const std::vector<std::string> step = split_list(of_step);
  const auto usable = [](const std::vector<std::string>& list) {
    return !list.empty() && list.size() <= kMaxGpus && std::all_of(list.begin(), list.end(), is_number);
  };
  if (!usable(numbers) || !usable(step)) return {};
  const bool within_step = std::all_of(numbers.begin(), numbers.end(), [&](const std::string& number) {
    return std::stoull(number) < step.size();
  });
  std::vector<std::string> gpus;
  for (const std::string& number : numbers) {
    gpus.push_back(within_step ? step[std::stoull(number)] : number);
    if (std::find(step.begin(), step.end(), gpus.back()) == step.end()) return {};
  }
  return gpus;
}

std::string list_for_plan(const std::vector<std::vector<std::string>>& of_tasks) {
  if (of_tasks.empty() || of_tasks.front().empty()) return "";
  const auto& first = of_tasks.front();
  if (std::all_of(of_tasks.begin(), of_tasks.end(), [&](const auto& each) { return each == first; })) {
    return join(first, ",");
  }
  std::vector<std::string> all;
  for (const auto& each : of_tasks) {
    if (each.size() != first.size()) return "";
    all.insert(all.end(), each.begin(), each.end());
  }
  // Tasks that share only some of their GPUs: equal blocks cannot express that.
  return std::set<std::string>(all.begin(), all.end()).size() == all.size() ? join(all, ",") : "";
}

std::string pci_address(const std::string& number, const std::string& listed) {
  std::error_code error;
  for (std::filesystem::directory_iterator gpu(listed, error); gpu != end(gpu); gpu.increment(error)) {
    if (error) break;
    std::ifstream about(gpu->path() / "information");
    for (std::string line; std::getline(about, line);) {
      if (!line.starts_with("Device Minor:")) continue;
      const std::size_t at = line.find_first_of("0123456789");
      if (at != std::string::npos && line.substr(at) == number) return gpu->path().filename().string();
    }
  }
  return number;
}

namespace {

std::string field(const std::string& text) {
  return text == "-" ? "" : text;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

using Clock = std::chrono::steady_clock;

// For all calls together. Finding the GPUs of a node takes seconds when their driver sleeps.
constexpr std::chrono::seconds kTimeout{10};

CommandResult ask(const std::vector<std::string>& arguments, Clock::time_point end) {
  Command command;
  command.arguments = arguments;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  CommandResult result = capture(command, std::max(left, std::chrono::milliseconds(0)));
  if (!result.in_time) {
    throw Error("lockstep-pin did not end within " + std::to_string(kTimeout.count()) + " s and was killed");
  }
  return result;
}

// An explanation that fails does not change the plan.
void explain(const std::vector<std::string>& arguments, const std::string& node, Clock::time_point end) {
  const std::string prefix = node + ": pin: ";
  try {
    std::istringstream lines(ask(arguments, end).output);
    for (std::string line; std::getline(lines, line);) say(prefix + line);
  } catch (const Error& error) {
    say(prefix + "cannot explain the plan: " + error.what());
  }
}

}  // namespace

std::vector<TaskPlacement> parse_plan(const std::string& text, std::size_t tasks) {
  std::vector<TaskPlacement> placements;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::size_t task = 0;
    std::string cpus;
    std::string workers;
    std::string numa;
    int threads = 0;
    if (!(fields >> task >> cpus >> workers >> numa >> threads) || task != placements.size() || threads < 0) {
      throw Error("lockstep-pin printed something that is not a plan: '" + line + "'");
    }
    std::string gpus = "-";
    std::string places = "-";
    fields >> gpus >> places;
    placements.push_back({field(cpus), field(workers), field(numa), field(gpus), threads, field(places)});
    parse_cpu_list(placements.back().cpus);
    parse_cpu_list(placements.back().workers);
  }
  if (placements.size() != tasks) {
    throw Error("lockstep-pin planned for " + std::to_string(placements.size()) + " tasks instead of " +
                std::to_string(tasks));
  }
  return placements;
}

std::vector<std::string> plan_arguments(const Config& config, const PinRequest& pin, const Grant& granted) {
  std::vector<std::string> arguments{helper_program(config.helpers, "lockstep-pin"), "plan"};
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
  Grant granted{tasks.size(), format_cpu_list(tasks.wait_for_cpus(kSecondsForTasks)), cpus_per_task, ""};
  if (granted.cpus.empty()) {
    throw Error("some of the step's tasks did not start within " + std::to_string(kSecondsForTasks) + " s");
  }
  std::vector<std::vector<std::string>> gpus;
  for (const std::string& list : tasks.all_gpus()) gpus.push_back(split_list(list));
  granted.gpus = list_for_plan(gpus);

  const Clock::time_point end = Clock::now() + kTimeout;
  const auto plan = [&] {
    std::vector<std::string> arguments = plan_arguments(config, pin, granted);
    arguments.emplace_back("--plain");
    return ask(arguments, end);
  };
  CommandResult result = plan();
  if (result.exit_code != 0 && !granted.gpus.empty()) {
    // If the topology lacks a device, the tasks are still pinned.
    say(node + ": pin: the plan ignores the GPUs: " + first_line(result.error));
    granted.gpus.clear();
    result = plan();
  }
  if (result.exit_code != 0) {
    throw Error(result.error.empty() ? "lockstep-pin ended with exit code " + std::to_string(result.exit_code)
                                     : first_line(result.error));
  }
  tasks.set_placements(parse_plan(result.output, tasks.size()));
  if (pin.explain) explain(plan_arguments(config, pin, granted), node, end);
}

void bind(const TaskPlacement& placement) {
  std::vector<int> cpus = parse_cpu_list(placement.cpus);
  const std::vector<int> workers = parse_cpu_list(placement.workers);
  cpus.insert(cpus.end(), workers.begin(), workers.end());
  bind_this_thread(cpus);
}

std::vector<const char*> outer_openmp_variables(const std::function<std::string(const char*)>& variable) {
  std::vector<const char*> names;
  try {
    const std::vector<int> cpus = parse_cpu_list(variable("LOCKSTEP_CPUS"));
    if (cpus.empty()) return names;
    if (variable("OMP_NUM_THREADS") == std::to_string(cpus.size())) names.push_back("OMP_NUM_THREADS");
    if (variable("OMP_PROC_BIND") == "close") names.push_back("OMP_PROC_BIND");
    std::string places = variable("OMP_PLACES");
    std::erase_if(places, [](char c) { return c == '{' || c == '}'; });
    if (parse_cpu_list(places) == cpus) names.push_back("OMP_PLACES");
  } catch (const Error&) {  // a value of the user's, such as OMP_PLACES=cores
  }
  return names;
}

}  // namespace lockstep::spank
