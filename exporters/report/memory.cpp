#include "exporters/report/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/process.h"
#include "common/units.h"

namespace lockstep::report {

std::vector<MemoryUse> memory_use(const Run& run) {
  std::map<std::pair<std::string, std::uint64_t>, MemoryUse> groups;
  for (const record::Snapshot& rank : run.ranks) {
    if (!rank.resources || rank.resources->memory_limit_bytes == 0) continue;
    MemoryUse& use = groups[{rank.identity.node, rank.resources->memory_group}];
    use.node = rank.identity.node;
    use.ranks.push_back(rank.identity.rank);
    use.peak += rank.resources->memory_peak_bytes;
    use.limit = rank.resources->memory_limit_bytes;
    use.buffers += rank.resources->loader_buffer_bytes;
    use.of_group = rank.resources->memory_group != 0;
    use.died = use.died || (!rank.alive && rank.finished_unix_ns == 0);
  }
  std::vector<MemoryUse> uses;
  for (auto& [key, use] : groups) uses.push_back(std::move(use));
  std::stable_sort(uses.begin(), uses.end(),
                   [](const auto& a, const auto& b) { return a.share() > b.share(); });
  return uses;
}

std::string to_text(const MemoryUse& use) {
  const std::string ranks = use.ranks.size() == 1
                                ? fmt::format("{} uses", rank_name(use.ranks.front(), use.node))
                                : fmt::format("the {} ranks on {} use", use.ranks.size(), use.node);
  const std::string batches =
      use.buffers == 0 ? "" : fmt::format("; the loader's batches at most {}", format_bytes(use.buffers));
  return fmt::format("{} up to {} of the {} of {} ({:.0f} %{})", ranks, format_bytes(use.peak),
                     format_bytes(use.limit), use.of_group ? "the job's cgroup" : "the node",
                     100 * use.share(), batches);
}

bool is_full(const MemoryUse& use) {
  return use.share() >= (use.died ? kMemoryFullOfDead : kMemoryFull);
}

}  // namespace lockstep::report
