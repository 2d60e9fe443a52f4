#include "runtime/data/plan/epoch_planner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/error.h"

namespace lockstep::data {
namespace {

// Ranks x steps of a block: a plan takes memory for each, also where steps hold fewer samples than there are
// ranks.
constexpr std::size_t kMaxRankSteps = std::size_t{1} << 20;

}  // namespace

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options)
    : source_(source),
      options_((check_options(options), options)),
      order_(source.size(), options.order, options.seed, options.epoch),
      reader_(source, order_, options_),
      packer_(options) {
  if (options.longest > 0) fail_usage("only a mixture's ranges can limit the length of samples");
  state_.data = source.fingerprint();
  state_.order = order_fingerprint();
}

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state)
    : EpochPlanner(source, options) {
  if (state.data != state_.data) {
    fail("cannot resume: the state is of other data ({}) than these ({})", state.data, state_.data);
  }
  if (state.order != state_.order) {
    fail(
        "cannot resume: the state is of another order ({}) than this ({}); seed, epoch and the treatment of "
        "over-long "
        "samples must be the same",
        state.order, state_.order);
  }
  if (state.position.mixture) fail("cannot resume: the state is of a mixture");
  const auto [block, used, mixture] = state.position;
  if (block > order_.blocks() || (block == order_.blocks() && used > 0)) {
    fail("cannot resume: the state is at item {} of block {}, and there are {} blocks", used, block,
         order_.blocks());
  }
  state_ = state;
  next_block_ = block;
  if (used == 0) return;
  load_next_block();
  if (used > pool_.size()) {
    fail("cannot resume: the state has used {} items of block {}, which has {}", used, block, pool_.size());
  }
  pool_.erase(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(used));
  runs_ = {{block, 0, used}};
}

std::string EpochPlanner::order_fingerprint() const {
  std::string name = order_.fingerprint();
  if (options_.too_long == TooLong::truncate) name += "-truncated";
  if (options_.too_long == TooLong::skip) name += "-skipped";
  if (options_.too_long == TooLong::split) name += "-split-" + std::to_string(options_.cap);
  return name;
}

// Where the epoch goes on when the items of the pool before this place are used.
PlanPosition EpochPlanner::position_at(std::size_t place) const {
  if (place == pool_.size()) return {.block = next_block_, .used = 0};
  const auto run =
      std::find_if(runs_.rbegin(), runs_.rend(), [place](const Run& r) { return r.begin <= place; });
  return {.block = run->block, .used = run->used + (place - run->begin)};
}

void EpochPlanner::load_next_block() {
  // What is left of earlier blocks keeps its identity.
  std::vector<SampleId> ids;
  ids.reserve(pool_.size());
  for (Item& item : pool_) {
    ids.push_back(id_of(item.index));
    item.index = static_cast<std::uint32_t>(ids.size() - 1);
  }
  ids_ = std::move(ids);
  first_index_ = static_cast<std::uint32_t>(ids_.size());
  block_ = next_.valid() ? next_.get() : reader_.read(next_block_);
  over_long_.add(block_.over_long);
  runs_.push_back({next_block_++, pool_.size(), 0});
  for (Item& item : block_.items) item.index += first_index_;
  block_.items.insert(block_.items.begin(), pool_.begin(), pool_.end());
  pool_ = std::exchange(block_.items, {});
  if (next_block_ < order_.blocks()) {
    next_ = std::async(std::launch::async, [this, block = next_block_] { return reader_.read(block); });
  }
}

// As many steps as the samples read so far give, at least one: reads blocks until there is one.
bool EpochPlanner::next_block(PlannedBlock& block) {
  const std::size_t max_steps =
      std::max<std::size_t>(1, kMaxRankSteps / static_cast<std::size_t>(options_.ranks));
  block = {.plan = Plan(options_, source_.size(), state_.data), .start = state_, .after = {}};
  for (;;) {
    const bool last = next_block_ >= order_.blocks();
    std::size_t place = 0;
    block.plan.reserve(pool_.size());
    while (place < pool_.size() && block.plan.steps() < max_steps) {
      const std::size_t count = packer_.take(std::span(pool_).subspan(place), last);
      if (count == 0) break;
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

void EpochPlanner::drop_used(std::size_t place) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::size_t end = i + 1 < runs_.size() ? runs_[i + 1].begin : pool_.size();
    if (end <= place) continue;
    const std::size_t used = place > runs_[i].begin ? place - runs_[i].begin : 0;
    runs.push_back({runs_[i].block, runs_[i].begin + used - place, runs_[i].used + used});
  }
  runs_ = std::move(runs);
  pool_.erase(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(place));
}

// Does with a last step of fewer samples than ranks as the options say. False when it is dropped.
bool EpochPlanner::complete_last_step() {
  const auto ranks = static_cast<std::size_t>(options_.ranks);
  if (packer_.samples() >= ranks || options_.tail == Tail::fill) return true;
  if (options_.tail == Tail::drop) return false;
  packer_.repeat_samples(ranks);
  return true;
}

void EpochPlanner::change(const Cost& cost, const std::vector<double>& speeds) {
  options_ = with_cost(options_, cost, speeds);
  packer_ = StepPacker(options_);
}

}  // namespace lockstep::data
