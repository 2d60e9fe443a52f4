#include "runtime/comm/shared_cpus.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "runtime/comm/job_end.h"

namespace lockstep::comm {
namespace {

using Sets = std::vector<std::vector<int>>;

std::vector<int> common_cpus(const std::vector<int>& left, const std::vector<int>& right) {
  std::vector<int> both;
  std::set_intersection(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(both));
  return both;
}

Sets gather(Communicator& communicator, const std::vector<int>& cpus) {
  constexpr int kBits = 8;
  std::int64_t bytes = cpus.empty() ? 1 : *std::max_element(cpus.begin(), cpus.end()) / kBits + 1;
  communicator.all_reduce({&bytes, 1, DataType::i64}, "CPU numbers", {.op = ReduceOp::max})->wait();
  const auto width = static_cast<std::size_t>(bytes);
  std::vector<std::uint8_t> mine(width);
  for (const int cpu : cpus)
    mine[static_cast<std::size_t>(cpu / kBits)] |= 1U << static_cast<unsigned>(cpu % kBits);
  std::vector<std::uint8_t> all(width * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({mine.data(), width, DataType::u8}, all.data(), "CPU sets")->wait();
  Sets sets(static_cast<std::size_t>(communicator.size()));
  for (std::size_t byte = 0; byte < all.size(); ++byte) {
    for (int bit = 0; bit < kBits; ++bit) {
      if (((all[byte] >> bit) & 1) == 0) continue;
      sets[byte / width].push_back(static_cast<int>(byte % width) * kBits + bit);
    }
  }
  return sets;
}

std::vector<int> gather_nodes(Communicator& communicator) {
  std::int64_t mine = communicator.place().node;
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&mine, 1, DataType::i64}, all.data(), "nodes")->wait();
  return {all.begin(), all.end()};
}

}  // namespace

SharedCpus find_shared_cpus(const Sets& cpus, const std::vector<int>& nodes, int rank) {
  SharedCpus shared;
  std::map<int, std::vector<int>> ranks_of;  // by node
  for (std::size_t other = 0; other < nodes.size(); ++other)
    ranks_of[nodes[other]].push_back(static_cast<int>(other));
  const auto set_of = [&](int of) -> const std::vector<int>& { return cpus[static_cast<std::size_t>(of)]; };

  double share = 0;
  for (const int cpu : set_of(rank)) {
    int ranks = 0;
    for (const int other : ranks_of[nodes[static_cast<std::size_t>(rank)]])
      ranks += std::binary_search(set_of(other).begin(), set_of(other).end(), cpu) ? 1 : 0;
    shared.ranks = std::max(shared.ranks, ranks);
    share += 1.0 / ranks;
  }
  constexpr double kRounding = 1e-9;
  shared.threads = std::max(1, static_cast<int>(share + kRounding));

  const auto overlap_on = [&](const std::vector<int>& ranks) -> std::optional<CpuOverlap> {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (std::size_t j = i + 1; j < ranks.size(); ++j) {
        if (set_of(ranks[i]) != set_of(ranks[j]) && !common_cpus(set_of(ranks[i]), set_of(ranks[j])).empty())
          return CpuOverlap{.rank = ranks[i], .other = ranks[j]};
      }
    }
    return std::nullopt;
  };
  for (const auto& [node, ranks] : ranks_of) {
    const auto overlap = overlap_on(ranks);
    if (!overlap) continue;
    if (shared.overlap) {
      ++shared.overlap->more_nodes;
    } else {
      shared.overlap = overlap;
    }
  }
  return shared;
}

SharedCpus compare_cpus(Communicator& communicator, const std::vector<int>& cpus) {
  const Sets sets = gather(communicator, cpus);
  const SharedCpus shared = find_shared_cpus(sets, gather_nodes(communicator), communicator.rank());
  if (!shared.overlap || shared.overlap->rank != communicator.rank()) return shared;
  const auto& theirs = sets[static_cast<std::size_t>(shared.overlap->other)];
  std::string line = fmt::format(
      "ranks {} and {} on {} both compute on CPUs {}, but rank {} has {} and rank {} has {}: ranks with crowded CPUs slow all others down; give each rank its own CPUs (--pin, or LOCKSTEP_CPUS)",
      shared.overlap->rank, shared.overlap->other, communicator.place().node_name,
      format_cpu_list(common_cpus(cpus, theirs)), shared.overlap->rank, format_cpu_list(cpus),
      shared.overlap->other, format_cpu_list(theirs));
  if (shared.overlap->more_nodes > 0)
    line += fmt::format("; so do ranks of {} more nodes", shared.overlap->more_nodes);
  print_line(line);
  return shared;
}

}  // namespace lockstep::comm
