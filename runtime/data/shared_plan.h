// One plan for all ranks: rank 0 reads the lengths, plans block after block, and hands each block's steps to
// the others, so that a job plans once and not once per rank, and lengths and state need to be readable on
// one node only. What rank 0 was given decides; the other ranks' options and state are not looked at.
//
// The loader does not need it: it plans on every rank, in the background, and compares what the ranks were
// given. A shared plan is for programs that plan themselves, where only one rank can read the lengths or the
// ranks' threads cannot spare the planning time. Its calls wait for rank 0. Of an epoch; mixtures are not
// shared.
//
// Every rank calls the same functions in the same order (they are collective, but for state_after).
//
// Threads: a SharedPlan belongs to the thread that uses the communicator.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/data/epoch_planner.h"

namespace lockstep::data {

class SharedPlan {
 public:
  /// `source` and `communicator` must outlive it; only rank 0's `source` is read from. `options.ranks` must
  /// be the communicator's size. Throws on every rank what EpochPlanner's constructors throw on rank 0.
  SharedPlan(const LengthSource& source, const PlanOptions& options, comm::Communicator& communicator,
             const std::optional<PlanState>& state = std::nullopt);

  /// As EpochPlanner::next_block. An error on rank 0 is thrown on every rank.
  bool next_block(PlannedBlock& block);

  /// As EpochPlanner::change, with rank 0's values.
  void change(const Cost& cost, const std::vector<double>& speeds);

  /// As EpochPlanner::state_after. Not collective; rank 0 only.
  PlanState state_after(const PlannedBlock& block, std::uint64_t micro_batches) const;

 private:
  bool leads() const { return communicator_.rank() == 0; }
  void share(std::vector<std::uint8_t>& bytes, std::string_view label);
  template <typename Work>
  std::vector<std::uint8_t> lead(Work&& work, std::string_view label);

  comm::Communicator& communicator_;
  std::unique_ptr<EpochPlanner> planner_;  // rank 0's
};

}  // namespace lockstep::data
