#include "plugin/spank/pinning/gpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/leaf/split.h"
#include "common/leaf/text.h"

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

}  // namespace lockstep::spank
