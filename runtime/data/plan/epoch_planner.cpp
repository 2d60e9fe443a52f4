#include "runtime/data/plan/epoch_planner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/background_cpus.h"
#include "common/error.h"

namespace lockstep::data {
namespace {

// Upper bound of ranks x steps of a block: a plan needs memory for each, even if steps have few samples.
constexpr std::size_t kMaxRankSteps = std::size_t{1} << 20;

}  // namespace

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options)
    : BlockwisePlanner(source, options), order_(source.size(), options.order, options.seed, options.epoch) {
  if (options.longest > 0) fail_usage("only a mixture's ranges can limit the length of samples");
  state_.order = order_fingerprint();
}

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state)
    : EpochPlanner(source, options) {
  expect_same_order(state, "seed, epoch and too_long (with split also the cap)");
  if (state.position.mixture) fail("cannot resume: the state belongs to a mixture, not to an epoch");
  const auto& [block, used, ahead, mixture] = state.position;
  if (block > order_.blocks() || (block == order_.blocks() && (used > 0 || !ahead.empty()))) {
    fail("cannot resume: the state is at item {} of block {}, but the number of blocks is {}", used, block,
         order_.blocks());
  }
  state_ = state;
  next_block_ = block;
  if (used == 0 && ahead.empty()) return;
  load_next_block();
  if (used > pool_.size()) {
    fail("cannot resume: the state has used {} items of block {}, which has {}", used, block, pool_.size());
  }
  drop_used(used);
  for (const std::uint64_t place : ahead) {
    while (place >= pool_.size() && next_block_ < order_.blocks()) load_next_block();
    if (place >= pool_.size()) {
      fail("cannot resume: the state has used the sample {} places after its position, but only {} are left",
           place, pool_.size());
    }
    use_ahead(place);
  }
}

std::string EpochPlanner::order_fingerprint() const {
  std::string name = order_.fingerprint();
  if (options_.too_long == TooLong::truncate) name += "-truncated";
  if (options_.too_long == TooLong::skip) name += "-skipped";
  if (options_.too_long == TooLong::split) name += "-split-" + std::to_string(options_.cap);
  return name;
}

// The epoch's position when the items of the pool before `place` are used.
PlanPosition EpochPlanner::position_at(std::size_t place) const {
  if (place == pool_.size()) return {.block = next_block_, .used = 0};
  std::size_t later = 0;  // blocks that begin after it
  while (block_begins_.rbegin()[later] > dropped_ + place) ++later;
  PlanPosition position{.block = next_block_ - 1 - later,
                        .used = dropped_ + place - block_begins_.rbegin()[later]};
  for (const std::uint64_t used : ahead_) {
    if (used >= dropped_ + place) position.ahead.push_back(used - dropped_ - place);
  }
  return position;
}

// Marks an item of the pool as used before its turn: of length 0, it belongs to a later step but is not packed.
void EpochPlanner::use_ahead(std::size_t place) {
  pool_[place].length = 0;
  ahead_.push_back(dropped_ + place);
}

void EpochPlanner::drop_used(std::size_t place) {
  pool_.erase(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(place));
  dropped_ += place;
  std::erase_if(ahead_, [this](std::uint64_t used) { return used < dropped_; });
}

void EpochPlanner::load_next_block() {
  // The samples that are left of earlier blocks get new indices.
  std::vector<SampleId> ids;
  ids.reserve(pool_.size());
  for (Item& item : pool_) {
    ids.push_back(id_of(item.index));
    item.index = static_cast<std::uint32_t>(ids.size() - 1);
  }
  ids_ = std::move(ids);
  first_index_ = static_cast<std::uint32_t>(ids_.size());
  const auto read = [this, options = options_](std::size_t block) {
    return read_block_for_plan(source_, order_, block, options);
  };
  block_ = next_.valid() ? next_.get() : read(next_block_);
  block_begins_.push_back(dropped_ + pool_.size());
  ++next_block_;
  for (Item& item : block_.items) item.index += first_index_;
  block_.items.insert(block_.items.begin(), pool_.begin(), pool_.end());
  pool_ = std::exchange(block_.items, {});
  if (next_block_ < order_.blocks()) {
    next_ = std::async(std::launch::async, [read, block = next_block_] {
      use_background_cpus();
      return read(block);
    });
  }
}

// Plans as many steps as the samples read so far fill. Reads blocks until they fill at least one.
bool EpochPlanner::next_block(PlannedBlock& block) {
  const std::size_t max_steps =
      std::max<std::size_t>(1, kMaxRankSteps / static_cast<std::size_t>(options_.ranks));
  block = {.plan = Plan(options_, source_.size(), state_.data), .start = state_, .after = {}};
  for (;;) {
    const bool last = next_block_ >= order_.blocks();
    std::size_t place = 0;
    std::vector<std::size_t> ahead;
    block.plan.reserve(pool_.size());
    while (place < pool_.size() && block.plan.steps() < max_steps) {
      const std::size_t count = packer_.take(std::span(pool_).subspan(place), last, &ahead);
      if (count == 0) break;
      for (const std::size_t taken : ahead) use_ahead(place + taken);
      place += count;
      const std::span<const Item> rest = std::span(pool_).subspan(place);
      const bool ends_epoch =
          last && std::all_of(rest.begin(), rest.end(), [](const Item& item) { return item.length == 0; });
      if (packer_.samples() == 0) continue;
      if (ends_epoch && !complete_last_step()) continue;
      block.plan.append_step(packer_.pack(state_.steps),
                             [this](std::uint32_t index) { return id_of(index); });
      ++state_.steps;
      block.after.push_back(position_at(place));
    }
    state_.position = position_at(place);
    drop_used(place);
    if (block.plan.steps() > 0) return true;
    if (last) return false;
    load_next_block();
  }
}

// Applies options_.tail to a last step of fewer samples than ranks. Returns false if the step is dropped.
bool EpochPlanner::complete_last_step() {
  const auto ranks = static_cast<std::size_t>(options_.ranks);
  if (packer_.samples() >= ranks || options_.tail == Tail::fill) return true;
  if (options_.tail == Tail::drop) return false;
  packer_.repeat_samples(ranks);
  return true;
}

}  // namespace lockstep::data
