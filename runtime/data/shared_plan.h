// One plan for the ranks of a node: each block is planned by one of them, and the others take its steps. What
// a block holds follows from where it begins and from the data, so ranks need not agree on who plans: whoever
// needs a block first does, ahead of use, while the others still use the one before. Ranks on other nodes
// plan the same for themselves, without a word over the network.
//
// Every rank has a planner that was made with the same data and options, which costs next to nothing until it
// plans, and stands where the shared plan does.
//
// Threads: as for any planner (plan/blockwise_planner.h); several may use the same OncePerNode.
#pragma once

#include <memory>
#include <vector>

#include "runtime/data/once_per_node.h"
#include "runtime/data/plan/blockwise_planner.h"

namespace lockstep::data {

class SharedPlan final : public BlockwisePlanner {
 public:
  /// `planner` plans where this rank is the first that needs a block.
  SharedPlan(std::shared_ptr<BlockwisePlanner> planner, std::shared_ptr<OncePerNode> node)
      : planner_(std::move(planner)), node_(std::move(node)) {}

  /// Throws what planning it threw, on whichever rank of the node.
  bool next_block(PlannedBlock& block) override;

  PlanState state_after(const PlannedBlock& block, std::uint64_t micro_batches) const override {
    return planner_->state_after(block, micro_batches);
  }
  void change(const Cost& cost, const std::vector<double>& speeds) override {
    planner_->change(cost, speeds);
  }
  const PlanState& next_start() const override { return planner_->next_start(); }
  std::uint64_t ends_at() const override { return planner_->ends_at(); }
  void go_to(const PlanState& start) override { planner_->go_to(start); }

 private:
  const std::shared_ptr<BlockwisePlanner> planner_;
  const std::shared_ptr<OncePerNode> node_;
};

/// A hash of a block's steps: where it is the same, ranks do the same.
std::string fingerprint_of(const PlannedBlock& block);

}  // namespace lockstep::data
