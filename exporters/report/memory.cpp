#include "exporters/report/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/process.h"
#include "common/units.h"

namespace lockstep::report {

std::vector<MemoryUse> memory_use(const Run& run) {
  using Key = std::pair<std::string, std::uint64_t>;
  std::map<Key, MemoryUse> groups;
  std::map<Key, std::uint64_t> shared;
  for (const record::Snapshot& rank : run.ranks) {
    if (!rank.resources || rank.resources->memory_limit_bytes == 0) continue;
    const Key key{rank.identity.node, rank.resources->memory_group};
    MemoryUse& use = groups[key];
    use.node = rank.identity.node;
    use.ranks.push_back(rank.identity.rank);
    const record::Resources& used = *rank.resources;
    // The limit counts pages of files too, but the kernel gives them up first. Ranks of a node map each other's buckets.
    use.peak += used.memory_peak_bytes -
                std::min(used.memory_peak_bytes, used.memory_file_bytes + used.memory_shared_bytes);
    shared[key] = std::max(shared[key], used.memory_shared_bytes);
    use.limit = rank.resources->memory_limit_bytes;
    use.buffers += rank.resources->loader_buffer_bytes;
    use.of_group = rank.resources->memory_group != 0;
    use.died = use.died || (!rank.alive && rank.finished_unix_ns == 0);
  }
  std::vector<MemoryUse> uses;
  for (auto& [key, use] : groups) {
    use.peak += shared[key];
    uses.push_back(std::move(use));
  }
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
