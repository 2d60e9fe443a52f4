#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/launcher.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/step_packer.h"

namespace lockstep::data {
namespace {

// Upper bound of ranks x steps of a block: a plan needs memory for each, even if steps have few samples.
constexpr std::size_t kMaxRankSteps = std::size_t{1} << 20;

}  // namespace

// The samples that are in no step yet, in the epoch's order: the rest of earlier blocks, then the last block loaded.
struct EpochPlanner::Pool {
  EpochOrder order;
  std::future<BlockSamples> next = {};  // the block after the last one loaded
  std::size_t next_block = 0;

  std::vector<Item> items = {};
  std::uint64_t dropped = 0;                     // items that left the pool
  std::vector<std::uint64_t> ahead = {};         // items that are used already, counted like `dropped`
  std::vector<std::uint64_t> block_begins = {};  // of the blocks loaded so far, counted like `dropped`
  std::vector<SampleId> ids = {};                // of indices below first_index: samples of earlier blocks
  std::uint32_t first_index = 0;                 // of the last block's samples
  BlockSamples block = {};                       // the last block loaded; its items are in the pool
};

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options)
    : BlockwisePlanner(source, options),
      pool_(new Pool{EpochOrder(source.size(), options.order, options.seed, options.epoch)}) {
  state_.order = order_fingerprint();
}

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state)
    : EpochPlanner(source, options) {
  expect_same_order(state, "seed, epoch and too_long (with split also the cap)");
  if (state.position.mixture) fail("cannot resume: the state belongs to a mixture, not to an epoch");
  const auto& [block, used, ahead, mixture] = state.position;
  if (block > pool_->order.blocks() || (block == pool_->order.blocks() && (used > 0 || !ahead.empty()))) {
    fail("cannot resume: the state is at item {} of block {}, but the number of blocks is {}", used, block,
         pool_->order.blocks());
  }
  state_ = state;
  pool_->next_block = block;
  if (used == 0 && ahead.empty()) return;
  load_next_block();
  if (used > pool_->items.size()) {
    fail("cannot resume: the state has used {} items of block {}, which has {}", used, block,
         pool_->items.size());
  }
  drop_used(used);
  for (const std::uint64_t place : ahead) {
    while (place >= pool_->items.size() && pool_->next_block < pool_->order.blocks()) load_next_block();
    if (place >= pool_->items.size()) {
      fail("cannot resume: the state has used the sample {} places after its position, but only {} are left",
           place, pool_->items.size());
    }
    use_ahead(place);
  }
}

EpochPlanner::~EpochPlanner() = default;

SampleId EpochPlanner::id_of(std::uint32_t index) const {
  return index < pool_->first_index ? pool_->ids[index] : pool_->block.id_of(index - pool_->first_index);
}

std::string EpochPlanner::order_fingerprint() const {
  std::string name = pool_->order.fingerprint();
  if (options_.too_long == TooLong::truncate) name += "-truncated";
  if (options_.too_long == TooLong::skip) name += "-skipped";
  if (options_.too_long == TooLong::split) name += "-split-" + std::to_string(options_.cap);
  return name;
}

// The epoch's position when the items of the pool before `place` are used.
PlanPosition EpochPlanner::position_at(std::size_t place) const {
  if (place == pool_->items.size()) return {.block = pool_->next_block, .used = 0};
  std::size_t later = 0;  // blocks that begin after it
  while (pool_->block_begins.rbegin()[later] > pool_->dropped + place) ++later;
  PlanPosition position{.block = pool_->next_block - 1 - later,
                        .used = pool_->dropped + place - pool_->block_begins.rbegin()[later]};
  for (const std::uint64_t used : pool_->ahead) {
    if (used >= pool_->dropped + place) position.ahead.push_back(used - pool_->dropped - place);
  }
  return position;
}

// Marks an item of the pool as used before its turn: of length 0, it belongs to a later step but is not packed.
void EpochPlanner::use_ahead(std::size_t place) {
  pool_->items[place].length = 0;
  pool_->ahead.push_back(pool_->dropped + place);
}

void EpochPlanner::drop_used(std::size_t place) {
  pool_->items.erase(pool_->items.begin(), pool_->items.begin() + static_cast<std::ptrdiff_t>(place));
  pool_->dropped += place;
  std::erase_if(pool_->ahead, [this](std::uint64_t used) { return used < pool_->dropped; });
}

void EpochPlanner::load_next_block() {
  // The samples that are left of earlier blocks get new indices.
  std::vector<SampleId> ids;
  ids.reserve(pool_->items.size());
  for (Item& item : pool_->items) {
    ids.push_back(id_of(item.index));
    item.index = static_cast<std::uint32_t>(ids.size() - 1);
  }
  pool_->ids = std::move(ids);
  pool_->first_index = static_cast<std::uint32_t>(pool_->ids.size());
  const auto read = [this, options = options_](std::size_t block) {
    return read_block_for_plan(source_, pool_->order, block, options);
  };
  pool_->block = pool_->next.valid() ? pool_->next.get() : read(pool_->next_block);
  pool_->block_begins.push_back(pool_->dropped + pool_->items.size());
  ++pool_->next_block;
  for (Item& item : pool_->block.items) item.index += pool_->first_index;
  pool_->block.items.insert(pool_->block.items.begin(), pool_->items.begin(), pool_->items.end());
  pool_->items = std::exchange(pool_->block.items, {});
  if (pool_->next_block < pool_->order.blocks()) {
    pool_->next = std::async(std::launch::async, [read, block = pool_->next_block] {
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
    const bool last = pool_->next_block >= pool_->order.blocks();
    std::size_t place = 0;
    std::vector<std::size_t> ahead;
    block.plan.reserve(pool_->items.size());
    while (place < pool_->items.size() && block.plan.steps() < max_steps) {
      const std::size_t count = packer_->take(std::span(pool_->items).subspan(place), last, &ahead);
      if (count == 0) break;
      for (const std::size_t taken : ahead) use_ahead(place + taken);
      place += count;
      const std::span<const Item> rest = std::span(pool_->items).subspan(place);
      const bool ends_epoch =
          last && std::all_of(rest.begin(), rest.end(), [](const Item& item) { return item.length == 0; });
      if (packer_->samples() == 0) continue;
      if (ends_epoch && !complete_last_step()) continue;
      block.plan.append_step(packer_->pack(state_.steps),
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
  if (packer_->samples() >= ranks || options_.tail == Tail::fill) return true;
  if (options_.tail == Tail::drop) return false;
  packer_->repeat_samples(ranks);
  return true;
}

}  // namespace lockstep::data
