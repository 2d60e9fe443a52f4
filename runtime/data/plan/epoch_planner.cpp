#include "runtime/data/plan/epoch_planner.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/error.h"

namespace lockstep::data {
namespace {

// Samples have smaller indexes; from here on come those carried in, and the pieces behind them.
constexpr std::uint32_t kBlockSamples = BlockSamples::kPieces;

// Micro-batches that may be dealt and wait for their exchanges.
constexpr std::size_t kAhead = 2048;

std::size_t steps_ahead(const PlanOptions& options) {
  const auto batches = static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate);
  return std::clamp<std::size_t>(kAhead / batches / 4 * 4, 8, 256);
}
// Blocks of fewer samples are planned before another thread has begun.
constexpr std::size_t kWorthAThread = 16384;

bool bit(const std::vector<bool>& bits, std::size_t place) {
  return place < bits.size() && bits[place];
}

}  // namespace

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options)
    : source_(source),
      options_((check_options(options), options)),
      fingerprint_(source.fingerprint()),
      order_(source.size(), options.order, options.seed, options.epoch),
      reader_(source, order_, options_),
      planner_(std::make_unique<BlockPlanner>(options)) {
  if (options.longest > 0) fail_usage("only a mixture's ranges can limit the length of samples");
  use_threads(0);
  start_.data = fingerprint_;
  start_.order = order_fingerprint();
  start_.geometry = options_;
}

EpochPlanner::EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state)
    : EpochPlanner(source, options) {
  if (state.data != start_.data) {
    fail("cannot go on: the state is of other data ({}) than these ({})", state.data, start_.data);
  }
  if (state.order != start_.order) {
    fail(
        "cannot go on: the state is of another order ({}) than this ({}); seed, epoch and what becomes of "
        "over-long "
        "samples must be the same",
        state.order, start_.order);
  }
  if (state.mixture) fail("cannot go on: the state is of a mixture");
  if (state.block > order_.blocks()) {
    fail("cannot go on: the state is at block {} of {}", state.block, order_.blocks());
  }
  for (const SampleId id : state.carried) {
    if (sample_of(id) >= source_.size())
      fail("cannot go on: the state names sample {}, of {}", id, source_.size());
  }
  go_on_from(state);
}

void EpochPlanner::go_on_from(const PlanState& state) {
  next_block_ = state.block;
  start_ = start_behind(state, options_, [&](const PlanState& start) -> std::optional<std::vector<bool>> {
    EpochPlanner probe(source_, options_);
    probe.start_ = start;
    probe.next_block_ = next_block_;
    PlannedBlock block;
    if (!probe.next_block(block) || block.plan.micro_batches_per_rank() < state.done) return std::nullopt;
    return probe.state_after(block, state.done).used;
  });
}

std::string EpochPlanner::order_fingerprint() const {
  std::string name = order_.fingerprint();
  if (options_.too_long == TooLong::truncate) name += "-truncated";
  if (options_.too_long == TooLong::skip) name += "-skipped";
  if (options_.too_long == TooLong::split) name += "-split-" + std::to_string(options_.cap);
  return name;
}

Plan EpochPlanner::empty_plan() const {
  return {options_, source_.size(), fingerprint_};
}

SampleId EpochPlanner::id_of(std::uint32_t index) const {
  if (index >= kBlockSamples) return extras_[index - kBlockSamples];
  return shard_begins_[index / EpochOrder::kShardSamples] + index % EpochOrder::kShardSamples;
}

// What was carried into the block, with lengths read anew.
std::vector<Item> EpochPlanner::read_carried() {
  std::vector<Item> items;
  const auto cap = static_cast<std::uint32_t>(options_.cap);
  for (std::size_t i = 0; i < start_.carried.size(); ++i) {
    const SampleId sample = sample_of(start_.carried[i]);
    const std::uint64_t piece = piece_of(start_.carried[i]);
    std::uint32_t length = 0;
    source_.read(sample, std::span(&length, 1));
    if (length <= piece * cap)
      fail("cannot go on: sample {} has {} tokens and no piece {}", sample, length, piece);
    // The cap may have been greater when it was carried.
    if (length > cap && !bit(start_.gone, i)) {
      if (options_.too_long == TooLong::refuse) refuse_over_long(sample, length, cap);
      if (options_.too_long == TooLong::skip) {
        over_long_.add({.samples = 1, .tokens = length, .first = sample});
        continue;
      }
    }
    items.push_back({kBlockSamples + static_cast<std::uint32_t>(i),
                     std::min(cap, static_cast<std::uint32_t>(length - piece * cap))});
  }
  return items;
}

// What was carried into the block, its own samples in the epoch's order behind it.
void EpochPlanner::read_block(std::size_t block) {
  const std::vector<Item> carried = read_carried();
  BlockSamples own = reader_.take(block);
  over_long_.add(own.over_long);
  shard_begins_ = std::move(own.shard_begins);
  extras_ = start_.carried;
  extras_.insert(extras_.end(), own.pieces.begin(), own.pieces.end());
  items_ = std::move(own.items);
  if (!own.pieces.empty()) {
    const auto shift = static_cast<std::uint32_t>(start_.carried.size());
    for (Item& item : items_) item.index += item.index >= kBlockSamples ? shift : 0;
  }
  items_.reserve(items_.size() + carried.size());  // no more: inserting alone would take twice the room
  items_.insert(items_.begin(), carried.begin(), carried.end());
  carried_ = carried.size();
  if (start_.gone.empty()) return;
  const auto gone = [this](const Item& item) {
    return bit(start_.gone,
               item.index >= kBlockSamples ? item.index - kBlockSamples : extras_.size() + item.index);
  };
  const auto behind = items_.begin() + static_cast<std::ptrdiff_t>(carried_);
  carried_ -= static_cast<std::size_t>(std::count_if(items_.begin(), behind, gone));
  items_.erase(std::remove_if(items_.begin(), items_.end(), gone), items_.end());
}

bool EpochPlanner::next_block(PlannedBlock& block) {
  block.plan = empty_plan();
  block.start = start_;
  if (next_block_ < order_.blocks()) {
    block.plan.reserve(order_.shards(next_block_).size() * EpochOrder::kShardSamples + start_.carried.size());
  }
  return plan_block(block.plan);
}

bool EpochPlanner::append_block(Plan& plan) {
  return plan_block(plan);
}

bool EpochPlanner::plan_block(Plan& plan) {
  if (next_block_ >= order_.blocks()) return false;
  read_block(next_block_);
  const std::size_t items_in_block = items_.size();
  const std::size_t read = std::min(source_.size(), (next_block_ + 1) * kBlockSamples);
  planner_->begin(std::move(items_), {.block = next_block_,
                                      .last = next_block_ + 1 == order_.blocks(),
                                      .saved = start_.saved,
                                      .carried = carried_,
                                      .behind = source_.size() - read});
  const std::size_t steps = plan.steps();
  const auto append = [&](const StepView& step) {
    plan.append_step(step, [this](std::uint32_t index) { return id_of(index); });
  };
  if (threads_ > 1 && items_in_block > kWorthAThread && options_.ranks > 1) {
    if (dealt_.empty()) {
      for (std::size_t i = steps_ahead(options_); i > 0; --i) dealt_.push_back({StepPacker(options_), 0});
    }
    if (next_block_ + 1 < order_.blocks()) reader_.begin(next_block_ + 1);
    in_pipeline(
        dealt_, [this](DealtStep& step) { return planner_->deal_step(step.packer, step.first); },
        [](DealtStep& step) { step.packer.exchange(); },
        [&append](DealtStep& step) { append(step.packer.finish(step.first)); },
        [this] { return reader_.go_on(); });
  }
  for (StepView step; planner_->next_step(step);) append(step);
  ++next_block_;
  start_.steps_before += plan.steps() - steps;
  start_.saved = planner_->saved();
  start_.block = next_block_;
  start_.done = 0;
  start_.gone.clear();
  start_.used.clear();
  start_.geometry = options_;
  items_ = planner_->take_left();
  start_.carried.clear();
  for (const Item& item : items_) start_.carried.push_back(id_of(item.index));
  reader_.reuse(std::move(items_));
  return true;
}

PlanState EpochPlanner::state_after(const PlannedBlock& block, std::uint64_t micro_batches) const {
  PlanState state = started(block, micro_batches);
  if (micro_batches == 0) return state;

  // Where each sample's bit is: first what was carried and the pieces, then the block's own.
  std::unordered_map<SampleId, std::size_t> extras;
  for (const SampleId id : state.carried) extras.emplace(id, extras.size());
  const std::span<const std::uint32_t> shards = order_.shards(state.block);
  std::unordered_map<std::uint64_t, std::size_t> slots;
  std::vector<std::uint32_t> lengths(EpochOrder::kShardSamples);
  for (const std::uint32_t shard : shards) {
    slots.emplace(shard, slots.size());
    if (options_.too_long != TooLong::split) continue;
    const std::span<std::uint32_t> read = std::span(lengths).first(order_.samples_of_shard(shard));
    source_.read(shard * EpochOrder::kShardSamples, read);
    for (std::size_t i = 0; i < read.size(); ++i) {
      for (std::uint64_t piece = 1; piece * options_.cap < read[i]; ++piece) {
        extras.emplace((shard * EpochOrder::kShardSamples + i) | piece << kPieceShift, extras.size());
      }
    }
  }
  state.used.resize(extras.size() + shards.size() * EpochOrder::kShardSamples);
  for_each_sample(block.plan, 0, micro_batches, [&](SampleId id) {
    const auto extra = extras.find(id);
    const std::size_t place = extra != extras.end()
                                  ? extra->second
                                  : extras.size() +
                                        slots.at(id / EpochOrder::kShardSamples) * EpochOrder::kShardSamples +
                                        id % EpochOrder::kShardSamples;
    state.used[place] = true;
  });
  return state;
}

void EpochPlanner::use_threads(int threads) {
  threads_ = threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency());
}

void EpochPlanner::change(const Cost& cost, const std::vector<double>& speeds) {
  PlanOptions options = options_;
  options.cost = cost;
  options.speeds = speeds;
  check_options(options);
  // No more than these: state_after() may be reading the others.
  options_.cost = cost;
  options_.speeds = speeds;
  start_.geometry = options_;
  planner_ = std::make_unique<BlockPlanner>(options_);
  dealt_.clear();
}

}  // namespace lockstep::data
