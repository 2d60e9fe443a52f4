#include "runtime/comm/nccl/placement.h"

#include <map>

#include "common/error.h"
#include "common/process.h"

namespace lockstep::comm::nccl {

void check_placement(const std::vector<DeviceOfRank>& ranks) {
  std::map<std::string, const DeviceOfRank*> owners;
  for (const auto& mine : ranks) {
    if (mine.identity.empty()) {
      fail_usage("{} cannot use cuda:{}: {}", rank_name(mine.rank, mine.node), mine.device, mine.trouble);
    }
    const auto [entry, first] = owners.emplace(mine.identity, &mine);
    if (first) continue;
    const auto& other = *entry->second;
    const std::string shared =
        fmt::format("ranks {} and {} on {} both use {} (cuda:{} and cuda:{})", other.rank, mine.rank,
                    mine.node, mine.identity, other.device, mine.device);
    if (mine.devices < mine.node_ranks) {
      fail_usage(
          "{}, but NCCL allows one rank per GPU; {} has {} ranks and rank {} sees {} GPU{}: start as many ranks as there are GPUs, or keep the model on the CPU",
          shared, mine.node, mine.node_ranks, mine.rank, mine.devices, mine.devices == 1 ? "" : "s");
    }
    fail_usage("{}, but NCCL allows one rank per GPU: put the model on cuda:<local rank>", shared);
  }
}

}  // namespace lockstep::comm::nccl
