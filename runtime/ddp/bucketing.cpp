#include "runtime/ddp/bucketing.h"

#include <algorithm>
#include <map>

namespace lockstep::ddp {
namespace {

struct Filling {
  std::vector<std::size_t> positions;  // in the order
  std::size_t bytes = 0;
  std::size_t limit = 0;  // index
};

}  // namespace

Assignment assign_buckets(std::span<const ParameterSize> parameters, std::span<const std::size_t> order,
                          std::span<const std::size_t> limits) {
  std::vector<std::vector<std::size_t>> closed;
  std::map<std::uint32_t, Filling> groups;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const ParameterSize& parameter = parameters[order[position]];
    Filling& filling = groups[parameter.group];
    filling.positions.push_back(position);
    filling.bytes += parameter.bytes;
    if (filling.bytes < limits[filling.limit]) continue;
    closed.push_back(std::move(filling.positions));
    filling = {.positions = {}, .bytes = 0, .limit = std::min(filling.limit + 1, limits.size() - 1)};
  }
  for (auto& [group, filling] : groups) {
    if (!filling.positions.empty()) closed.push_back(std::move(filling.positions));
  }
  std::sort(closed.begin(), closed.end(),
            [](const auto& left, const auto& right) { return left[0] < right[0]; });
  for (auto& bucket : closed) {
    for (std::size_t& entry : bucket) entry = order[entry];
  }
  return closed;
}

}  // namespace lockstep::ddp
