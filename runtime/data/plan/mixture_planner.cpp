#include "runtime/data/plan/mixture_planner.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "common/error.h"
#include "runtime/data/plan/order.h"
#include "runtime/data/plan/random.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kBlockSamples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
constexpr std::uint64_t kEndless = ~std::uint64_t{0};

std::string order_name(const Mixture& mixture, const PlanOptions& options) {
  std::string name = fingerprint_of(mixture);
  name += options.order == Order::sequential ? "-sequential" : "-seed" + std::to_string(options.seed);
  if (options.too_long != TooLong::refuse)
    name += "-" + name_of(options.too_long) + std::to_string(options.cap);
  return name;
}

}  // namespace

MixturePlanner::MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture)
    : source_(source),
      options_((check_options(options), options)),
      mixture_((check_mixture(mixture, source.size()), std::move(mixture))),
      planner_(std::make_unique<BlockPlanner>(options)) {
  if (source.size() >= kMostSamples) fail("{} samples are more than a mixture can have", source.size());
  options_.epoch = 0;
  start_.data = source.fingerprint();
  start_.order = order_name(mixture_, options_);
  start_.geometry = options_;
  start_.mixture.emplace();
  start_.mixture->drawn.assign(mixture_.parts.size(), 0);
  start_.mixture->owed.assign(mixture_.parts.size(), 0);
}

MixturePlanner::MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                               const PlanState& state)
    : MixturePlanner(source, options, std::move(mixture)) {
  if (state.data != start_.data) {
    fail("cannot go on: the state is of other data ({}) than these ({})", state.data, start_.data);
  }
  if (state.order != start_.order) {
    fail("cannot go on: the state is of another mixture or order ({}) than this ({})", state.order,
         start_.order);
  }
  if (!state.mixture || state.mixture->drawn.size() != mixture_.parts.size() ||
      state.mixture->owed.size() != mixture_.parts.size() || state.mixture->range >= mixture_.ranges.size() ||
      state.mixture->block_samples.value_or(0) > kBlockSamples) {
    fail("cannot go on: the state does not say where the mixture's {} data sets are", mixture_.parts.size());
  }
  for (const SampleId id : state.carried) {
    if (sample_of(id) >= source_.size()) {
      fail("cannot go on: the state names sample {}, of {}", sample_of(id), source_.size());
    }
  }
  const PlanOptions geometry = options_;
  start_ = start_behind(state, geometry, [&](const PlanState& start) -> std::optional<std::vector<bool>> {
    MixturePlanner probe(source_, options_, mixture_);
    probe.start_ = start;
    PlannedBlock block;
    if (!probe.next_block(block) || block.plan.micro_batches_per_rank() < state.done) return std::nullopt;
    return probe.state_after(block, state.done).used;
  });
}

std::size_t MixturePlanner::part_of(SampleId id) const {
  std::size_t part = 0;
  for (std::size_t behind = mixture_.parts[0].samples; sample_of(id) >= behind;) {
    behind += mixture_.parts[++part].samples;
  }
  return part;
}

std::vector<double> MixturePlanner::shares_of(std::size_t range) const {
  std::vector<double> shares = mixture_.ranges[range].weights;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

// Tokens that the plan takes of a sample, or of a piece of one; 0: none, it is skipped.
std::uint32_t MixturePlanner::checked_length(const PartStream::Sample& sample, std::uint64_t longest) const {
  const SampleId number = sample_of(sample.id);
  const std::uint64_t cap = options_.cap;
  const auto name = [&]() -> const std::string& { return mixture_.parts[part_of(sample.id)].name; };
  if (sample.length == 0) fail("sample {} (of '{}') is empty: remove it from the data", number, name());
  const std::uint64_t length = longest > 0 ? std::min<std::uint64_t>(longest, sample.length) : sample.length;
  const std::uint64_t begin = piece_of(sample.id) * cap;
  if (length <= begin) {
    fail("cannot go on: sample {} (of '{}') has {} tokens and no piece {}", number, name(), sample.length,
         piece_of(sample.id));
  }
  if (length <= cap) return static_cast<std::uint32_t>(length);
  if (options_.too_long == TooLong::refuse) {
    fail(
        "sample {} (of '{}') has {} tokens, over the cap of {} per micro-batch: raise the cap, shorten the "
        "sample, or say what is to become of such samples",
        number, name(), sample.length, cap);
  }
  if (options_.too_long == TooLong::split && (length - 1) / cap >= kMostPieces) {
    fail("sample {} (of '{}') has {} tokens, more than {} pieces of the cap of {}: raise the cap", number,
         name(), sample.length, kMostPieces, cap);
  }
  return options_.too_long == TooLong::skip ? 0 : static_cast<std::uint32_t>(std::min(cap, length - begin));
}

// So many samples, or fewer that are tokens enough together; of each part first what was carried. Pieces of a
// sample that is split are drawn one after the other, each in its part's turn.
MixturePlanner::Drawn MixturePlanner::draw(const PlanState& start, std::uint64_t most_samples,
                                           std::uint64_t enough_tokens) const {
  Drawn drawn;
  drawn.behind = *start.mixture;
  const std::uint64_t longest = mixture_.ranges[start.mixture->range].longest;
  const std::vector<double> shares = shares_of(start.mixture->range);
  const std::size_t parts = mixture_.parts.size();
  std::vector<PartStream> streams;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    streams.emplace_back(source_, begin, mixture_.parts[part].samples, options_.order,
                         Random(options_.seed, part, 0).next(), start.mixture->drawn[part]);
    begin += mixture_.parts[part].samples;
  }
  std::vector<std::vector<SampleId>> carried(parts);
  for (const SampleId id : start.carried) {
    // A piece of what this range cuts off waits for another range.
    const bool cut = longest > 0 && piece_of(id) * options_.cap >= longest;
    (cut ? drawn.aside : carried[part_of(id)]).push_back(id);
  }
  std::vector<std::size_t> next_carried(parts, 0);
  // The next sample of a part, and how much the plan takes of it.
  const auto next_of = [&](std::size_t part, std::uint32_t& planned) {
    PartStream::Sample sample{};
    const bool is_new = next_carried[part] == carried[part].size();
    if (is_new) {
      sample = streams[part].next();
    } else {
      sample.id = carried[part][next_carried[part]++];
      source_.read(sample_of(sample.id), std::span(&sample.length, 1));
    }
    planned = checked_length(sample, longest);
    if (!is_new || options_.too_long != TooLong::split) return sample.id;
    const std::uint64_t all = longest > 0 ? std::min<std::uint64_t>(longest, sample.length) : sample.length;
    for (std::uint64_t piece = 1; piece * options_.cap < all; ++piece) {
      carried[part].push_back(sample.id | piece << kPieceShift);
    }
    return sample.id;
  };

  std::uint64_t tokens = 0;
  std::vector<double>& owed = drawn.behind.owed;
  for (std::uint64_t count = 0; count < most_samples && tokens < enough_tokens; ++count) {
    std::size_t part = parts;
    for (std::size_t i = 0; i < parts; ++i) {
      if (shares[i] > 0 && (part == parts || owed[i] > owed[part])) part = i;
    }
    const std::size_t whole_part = carried[part].size() + mixture_.parts[part].samples;
    SampleId id = 0;
    std::uint32_t length = 0;
    for (std::size_t skipped = 0; length == 0; ++skipped) {
      if (skipped > whole_part) {
        fail("every sample of '{}' is longer than the cap of {}", mixture_.parts[part].name, options_.cap);
      }
      id = next_of(part, length);
    }
    drawn.ids.push_back(id);
    drawn.lengths.push_back(length);
    tokens += length;
    for (std::size_t i = 0; i < parts; ++i) owed[i] += shares[i] * length;
    owed[part] -= length;
  }
  for (std::size_t part = 0; part < parts; ++part) {
    drawn.behind.drawn[part] = streams[part].position();
    drawn.aside.insert(drawn.aside.end(),
                       carried[part].begin() + static_cast<std::ptrdiff_t>(next_carried[part]),
                       carried[part].end());
  }
  return drawn;
}

std::uint64_t MixturePlanner::steps_left() const {
  const std::uint64_t end = mixture_.end_of(start_.mixture->range);
  return end > start_.steps_before ? end - start_.steps_before : 0;
}

// What is left of a block counts as not drawn.
void MixturePlanner::give_back(Drawn& drawn, std::vector<Item> left) {
  std::sort(left.begin(), left.end(), [](const Item& x, const Item& y) { return x.index < y.index; });
  const std::vector<double> shares = shares_of(drawn.behind.range);
  std::vector<double>& owed = drawn.behind.owed;
  start_.carried.clear();
  for (const Item& item : left) {
    const SampleId id = drawn.ids[item.index];
    start_.carried.push_back(id);
    for (std::size_t i = 0; i < owed.size(); ++i) owed[i] -= shares[i] * item.length;
    owed[part_of(id)] += item.length;
  }
  start_.carried.insert(start_.carried.end(), drawn.aside.begin(), drawn.aside.end());
  start_.mixture = std::move(drawn.behind);
  start_.mixture->block_samples.reset();
}

bool MixturePlanner::next_block(PlannedBlock& block) {
  const bool begun = start_.mixture->block_samples.has_value();
  if (!begun) {
    if (start_.steps_before >= mixture_.steps) {
      block.plan = Plan(options_, source_.size(), start_.data);
      block.start = start_;
      return false;
    }
    start_.mixture->range = mixture_.range_of(start_.steps_before);
  }
  // Not how full the steps before this block were: whoever plans it may not have planned those.
  const double fill = options_.padded ? 1 : planner_->fill();
  const double enough = static_cast<double>(steps_left()) * fill * static_cast<double>(planner_->capacity()) +
                        planner_->most_left();
  Drawn drawn =
      begun ? draw(start_, *start_.mixture->block_samples, kEndless)
            : draw(start_, kBlockSamples, enough < 1e18 ? static_cast<std::uint64_t>(enough) : kEndless);
  start_.mixture->block_samples = drawn.ids.size();
  options_.longest = mixture_.ranges[start_.mixture->range].longest;
  start_.geometry = options_;
  block.start = start_;
  block.plan = Plan(options_, source_.size(), start_.data);

  std::vector<Item> items;
  items.reserve(drawn.ids.size());
  for (std::size_t i = 0; i < drawn.ids.size(); ++i) {
    if (i < start_.gone.size() && start_.gone[i]) continue;
    items.push_back({static_cast<std::uint32_t>(i), drawn.lengths[i]});
  }
  planner_->begin(std::move(items),
                  {.block = start_.block, .last = false, .saved = start_.saved, .behind = kMostSamples});
  const std::uint64_t most = steps_left();
  StepView step;
  while (block.plan.steps() < most && planner_->next_step(step)) {
    block.plan.append_step(step, [&](std::uint32_t index) { return drawn.ids[index]; });
  }

  ++start_.block;
  start_.steps_before += block.plan.steps();
  start_.saved = planner_->saved();
  start_.done = 0;
  start_.gone.clear();
  start_.used.clear();
  give_back(drawn, planner_->take_left());
  return true;
}

PlanState MixturePlanner::state_after(const PlannedBlock& block, std::uint64_t micro_batches) const {
  PlanState state = started(block, micro_batches);
  if (micro_batches == 0) return state;
  std::unordered_map<SampleId, std::uint32_t> used;
  for_each_sample(block.plan, 0, micro_batches, [&](SampleId id) { ++used[id]; });
  // A tiny part may be in a block so often that even its epochs repeat: which of the same is used is the
  // same.
  const Drawn drawn = draw(state, state.mixture->block_samples.value_or(0), kEndless);
  state.used.resize(drawn.ids.size());
  for (std::size_t i = 0; i < drawn.ids.size(); ++i) {
    if (state.used[i]) continue;
    const auto found = used.find(drawn.ids[i]);
    if (found == used.end() || found->second == 0) continue;
    --found->second;
    state.used[i] = true;
  }
  return state;
}

void MixturePlanner::change(const Cost& cost, const std::vector<double>& speeds) {
  PlanOptions options = options_;
  options.cost = cost;
  options.speeds = speeds;
  check_options(options);
  // No more than these: state_after() may be reading the others.
  options_.cost = cost;
  options_.speeds = speeds;
  start_.geometry = options_;
  planner_ = std::make_unique<BlockPlanner>(options_);
}

}  // namespace lockstep::data
