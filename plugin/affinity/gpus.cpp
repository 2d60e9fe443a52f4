#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "common/error.h"
#include "common/leaf/number.h"
#include "common/leaf/split.h"
#include "plugin/affinity/plan.h"

namespace lockstep::affinity {
namespace {

// "00000000:07:00.0" (as nvidia-smi prints it), "0000:07:00.0" and "07:00.0" are the same device.
std::string short_bus_id(std::string_view text) {
  std::string id(text);
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto colons = std::count(id.begin(), id.end(), ':');
  if (colons == 1) return "0000:" + id;
  while (colons == 2 && id.find(':') > 4 && id.front() == '0') id.erase(0, 1);
  return id;
}

int find_gpu(const Machine& machine, std::string_view text) {
  const std::optional<int> index = to_number<int>(text);
  if (index && *index >= 0 && *index < static_cast<int>(machine.gpus.size())) return *index;
  for (std::size_t i = 0; !index && i < machine.gpus.size(); ++i) {
    if (machine.gpus[i].bus_id == short_bus_id(text)) return static_cast<int>(i);
  }
  std::vector<std::string> known;
  for (const Gpu& gpu : machine.gpus) known.push_back(gpu.bus_id);
  fail_usage("GPU '{}' is not in topology '{}', which has {} GPUs{}{}", text, machine.source, known.size(),
             known.empty() ? "" : ": ", fmt::join(known, ", "));
}

}  // namespace

std::vector<int> find_gpus(const Machine& machine, const std::string& list) {
  std::vector<int> found;
  if (list == "all") {
    found.resize(machine.gpus.size());
    std::iota(found.begin(), found.end(), 0);
    return found;
  }
  if (list.empty()) return found;
  for (const std::string_view text : split(list, ',')) {
    const int gpu = find_gpu(machine, text);
    if (std::find(found.begin(), found.end(), gpu) != found.end()) {
      fail_usage("GPU list '{}' names {} twice", list, machine.gpus[static_cast<std::size_t>(gpu)].bus_id);
    }
    found.push_back(gpu);
  }
  return found;
}

}  // namespace lockstep::affinity
