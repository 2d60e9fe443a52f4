#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "common/error.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/steps/step_packer.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBlockSamples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
// Samples that are drawn at once. Few, because those that no step of the block uses are drawn again.
constexpr std::size_t kDrawnAtOnce = 1024;

std::string order_name(const Mixture& mixture, const PlanOptions& options) {
  std::string name = fingerprint_of(mixture);
  name += options.order == Order::sequential ? "-sequential" : "-seed" + std::to_string(options.seed);
  if (options.too_long != TooLong::refuse)
    name += "-" + name_of(options.too_long) + std::to_string(options.cap);
  return name;
}

}  // namespace

// One data set of a mixture as an endless stream of samples: epoch after epoch, each in its own order. It can
// start at any position. It holds one block of the data set in memory.
class DatasetStream {
 public:
  /// The data set is the `samples` samples of the source from `begin` on. `position` is the number of samples
  /// already taken, in all epochs. `source` must outlive the stream.
  DatasetStream(const LengthSource& source, std::size_t begin, std::size_t samples, Order order,
                std::uint64_t seed, std::uint64_t position)
      : source_(source),
        begin_(begin),
        samples_(samples),
        order_kind_(order),
        seed_(seed),
        position_(position) {}

  struct Sample {
    SampleId id;  ///< includes the epoch
    std::uint32_t length;
  };
  Sample next() {
    if (place_ == block_.items.size()) load();
    const Item item = block_.items[place_++];
    ++position_;
    return {epoch_bits_ | block_.id_of(item.index), item.length};
  }

 private:
  // Loads the block that holds position_. Blocks are not all of the same size (the last one and the one with
  // the last shard are smaller), so their sizes are added up from the beginning of the epoch.
  void load() {
    const std::uint64_t epoch = position_ / samples_;
    if (!order_ || epoch != epoch_) {
      order_.emplace(samples_, order_kind_, seed_, epoch);
      epoch_ = epoch;
      epoch_bits_ = (epoch & 0xffU) << kEpochShift;
    }
    place_ = position_ % samples_;
    for (std::size_t block = 0;; ++block) {
      std::uint64_t size = 0;
      for (const std::uint32_t shard : order_->shards(block)) size += order_->samples_of_shard(shard);
      if (place_ < size) {
        block_ = read_block(source_, *order_, block, begin_);
        return order_->shuffle(block, block_.items);
      }
      place_ -= size;
    }
  }

  const LengthSource& source_;
  std::size_t begin_;
  std::size_t samples_;
  Order order_kind_;
  std::uint64_t seed_;
  std::uint64_t position_;
  std::optional<EpochOrder> order_;
  std::uint64_t epoch_ = 0;
  SampleId epoch_bits_ = 0;
  BlockSamples block_;
  std::size_t place_ = 0;  // of the next sample, in block_
};

std::size_t Mixture::samples() const {
  std::size_t sum = 0;
  for (const MixturePart& part : parts) sum += part.samples;
  return sum;
}

void check_mixture(const Mixture& mixture, std::size_t source_samples) {
  if (mixture.parts.empty()) fail_usage("a mixture needs at least one data set");
  if (mixture.steps == 0) fail_usage("a mixture needs a number of steps");
  for (const MixturePart& part : mixture.parts) {
    if (part.samples == 0) fail_usage("the mixture's data set '{}' has no samples", part.name);
  }
  if (mixture.samples() != source_samples) {
    fail_usage("the mixture's data sets have {} samples together, but the data have {}", mixture.samples(),
               source_samples);
  }
  if (mixture.weights.size() != mixture.parts.size()) {
    fail_usage("the mixture has {} weights for {} data sets", mixture.weights.size(), mixture.parts.size());
  }
  for (std::size_t part = 0; part < mixture.parts.size(); ++part) {
    const double weight = mixture.weights[part];
    if (!std::isfinite(weight) || !(weight > 0)) {
      fail_usage(
          "the weight of '{}' must be a finite number above 0, not {}: leave out a data set that is not used",
          mixture.parts[part].name, weight);
    }
  }
  if (!std::isfinite(std::accumulate(mixture.weights.begin(), mixture.weights.end(), 0.0)))
    fail_usage("the mixture's weights must have a finite sum");
}

std::vector<MixtureProgress> progress_of(const Mixture& mixture, const PlanState& state) {
  const auto& position = state.position.mixture;
  if (!position || position->drawn.size() != mixture.parts.size()) {
    fail("the state does not belong to this mixture of {} data sets", mixture.parts.size());
  }
  std::vector<MixtureProgress> progress;
  for (std::size_t i = 0; i < mixture.parts.size(); ++i) {
    const MixturePart& part = mixture.parts[i];
    const std::uint64_t drawn = position->drawn[i];
    progress.push_back({part.name, drawn / part.samples, drawn % part.samples, part.samples});
  }
  return progress;
}

std::string fingerprint_of(const Mixture& mixture) {
  std::string name = "mixture-4-";
  for (const MixturePart& part : mixture.parts) fmt::format_to(std::back_inserter(name), "{}+", part.samples);
  for (const double weight : mixture.weights) fmt::format_to(std::back_inserter(name), ":{}", weight);
  return name;
}

// A data set and the last sample drawn from it.
struct MixturePlanner::PartCursor {
  DatasetStream stream;
  DatasetStream::Sample sample;
  std::uint64_t next_piece;  // of that sample; 0: all its pieces are drawn
};

// The items drawn since the block began; the last ones are in no step yet.
struct MixturePlanner::Drawn {
  struct Item {
    SampleId id;
    std::uint32_t part;
    std::uint64_t next_piece;  // of the part's cursor after it
    std::uint32_t length;      // as planned; the pool's item has length 0 when it is used
  };

  std::vector<data::Item> pool;
  std::vector<Item> items;  // of each item of the pool; an item's index is its place
  std::size_t passed = 0;   // items of the pool that the position has passed
  std::vector<PartCursor> cursors;
  std::vector<double> shares;         // of each part, with sum 1
  std::vector<std::uint64_t> tokens;  // of each part, drawn so far
  std::uint64_t all_tokens = 0;       // their sum
};

MixturePlanner::MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture)
    : BlockwisePlanner(source, options), mixture_(std::move(mixture)), drawn_(std::make_unique<Drawn>()) {
  check_mixture(mixture_, source.size());
  if (source.size() >= kMaxSamples) {
    fail("a mixture can have at most {} samples, not {}", kMaxSamples - 1, source.size());
  }
  options_.epoch = 0;
  drawn_->shares = mixture_.weights;
  const double sum = std::accumulate(drawn_->shares.begin(), drawn_->shares.end(), 0.0);
  for (double& share : drawn_->shares) share /= sum;
  state_.order = order_name(mixture_, options_);
  const std::vector<std::uint64_t> none(mixture_.parts.size(), 0);
  state_.position.mixture = {.drawn = none, .piece = none, .tokens = none};
}

MixturePlanner::MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                               const PlanState& state)
    : MixturePlanner(source, options, std::move(mixture)) {
  expect_same_order(state, "mixture, seed and too_long (where it is not refuse also the cap)");
  const auto& position = state.position.mixture;
  const std::size_t parts = mixture_.parts.size();
  if (!position || position->drawn.size() != parts || position->piece.size() != parts ||
      position->tokens.size() != parts) {
    fail("cannot resume: the state does not have the positions of the mixture's {} data sets", parts);
  }
  for (std::size_t part = 0; part < parts; ++part) {
    if (position->piece[part] > 0 && position->drawn[part] == 0) {
      fail("cannot resume: the state has drawn a piece of a sample of '{}', but no sample of it",
           mixture_.parts[part].name);
    }
  }
  for (const SampleId id : position->waiting) {
    if (sample_of(id) >= source.size()) {
      fail("cannot resume: the state has drawn sample {}, but the data have {}", sample_of(id),
           source.size());
    }
  }
  state_ = state;
}

MixturePlanner::~MixturePlanner() = default;

// Discards what is drawn, and draws again from state_.
void MixturePlanner::begin_block() {
  const MixturePosition& position = *state_.position.mixture;
  drawn_->tokens = position.tokens;
  drawn_->all_tokens = std::accumulate(drawn_->tokens.begin(), drawn_->tokens.end(), std::uint64_t{0});
  drawn_->cursors = cursors_at(position);
  drawn_->pool.clear();
  drawn_->items.clear();
  add_waiting();
}

std::size_t MixturePlanner::part_of(SampleId id) const {
  std::size_t part = 0;
  for (std::size_t end = mixture_.parts[0].samples; sample_of(id) >= end; end += mixture_.parts[part].samples)
    ++part;
  return part;
}

// The samples that wait come first. The position has passed them: they were counted when they were drawn.
void MixturePlanner::add_waiting() {
  for (const SampleId id : state_.position.mixture->waiting) {
    const std::size_t part = part_of(id);
    std::uint32_t whole = 0;
    source_.read(sample_of(id), {&whole, 1});
    const std::uint32_t length = length_of(id, whole, piece_of(id), mixture_.parts[part].name);
    drawn_->pool.push_back({static_cast<std::uint32_t>(drawn_->pool.size()), length});
    drawn_->items.push_back({id, static_cast<std::uint32_t>(part), 0, length});
  }
  drawn_->passed = drawn_->pool.size();
}

std::vector<MixturePlanner::PartCursor> MixturePlanner::cursors_at(const MixturePosition& position) const {
  std::vector<PartCursor> cursors;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < mixture_.parts.size(); ++part) {
    const std::size_t samples = mixture_.parts[part].samples;
    const std::uint64_t piece = position.piece[part];
    const std::uint64_t complete = position.drawn[part] - (piece > 0 ? 1 : 0);
    DatasetStream stream(source_, begin, samples, options_.order, Random(options_.seed, part, 0).next(),
                         complete);
    cursors.push_back({std::move(stream), {}, piece});
    if (piece > 0) cursors.back().sample = cursors.back().stream.next();
    begin += samples;
  }
  return cursors;
}

std::size_t MixturePlanner::part_furthest_below_weight() const {
  std::size_t best = drawn_->shares.size();
  double max_deficit = 0;
  for (std::size_t part = 0; part < drawn_->shares.size(); ++part) {
    const double deficit = drawn_->shares[part] * static_cast<double>(drawn_->all_tokens) -
                           static_cast<double>(drawn_->tokens[part]);
    if (best < drawn_->shares.size() && deficit <= max_deficit) continue;
    best = part;
    max_deficit = deficit;
  }
  return best;
}

// The tokens that the plan uses of a piece of a sample; 0: the sample is skipped.
std::uint32_t MixturePlanner::length_of(SampleId id, std::uint32_t length, std::uint64_t piece,
                                        const std::string& part) const {
  if (length > options_.cap) {
    check_sample(fmt::format("sample {} (of '{}')", sample_of(id), part), length, options_);
    if (options_.too_long == TooLong::skip) return 0;
  }
  return planned_length(piece << kPieceShift, length, options_);
}

void MixturePlanner::draw_one() {
  const std::size_t part = part_furthest_below_weight();
  PartCursor& cursor = drawn_->cursors[part];
  if (cursor.next_piece == 0) cursor.sample = cursor.stream.next();
  const std::uint64_t piece = cursor.next_piece;
  const std::uint32_t length =
      length_of(cursor.sample.id, cursor.sample.length, piece, mixture_.parts[part].name);
  const bool more = options_.too_long == TooLong::split && (piece + 1) * options_.cap < cursor.sample.length;
  cursor.next_piece = more ? piece + 1 : 0;
  drawn_->pool.push_back({static_cast<std::uint32_t>(drawn_->pool.size()), length});
  drawn_->items.push_back(
      {cursor.sample.id | piece << kPieceShift, static_cast<std::uint32_t>(part), cursor.next_piece, length});
  drawn_->tokens[part] += length;
  drawn_->all_tokens += length;
}

void MixturePlanner::draw(std::size_t count) {
  // Skipped samples in succession are of one part: it keeps its turn until it yields tokens.
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < count || skipped > 0; ++i) {
    draw_one();
    skipped = drawn_->pool.back().length == 0 ? skipped + 1 : 0;
    const MixturePart& part = mixture_.parts[drawn_->items.back().part];
    // The only sample that fits may be the first of one epoch and the last of the next.
    if (skipped >= 2 * part.samples) {
      fail("every sample of '{}' is empty or longer than the cap of {}", part.name, options_.cap);
    }
  }
}

// Moves the position past the pool's items before `end`.
void MixturePlanner::advance(std::size_t end) {
  MixturePosition& position = *state_.position.mixture;
  for (; drawn_->passed < end; ++drawn_->passed) {
    const Drawn::Item& drawn = drawn_->items[drawn_->passed];
    if (piece_of(drawn.id) == 0) ++position.drawn[drawn.part];
    position.piece[drawn.part] = drawn.next_piece;
    position.tokens[drawn.part] += drawn.length;
  }
}

bool MixturePlanner::next_block(PlannedBlock& block) {
  const bool more = state_.steps < mixture_.steps;
  if (more) begin_block();
  block.plan = Plan(options_, source_.size(), state_.data);
  block.start = state_;
  block.after.clear();
  if (!more) return false;
  std::size_t place = 0;
  std::vector<std::size_t> ahead;
  std::vector<std::uint64_t>& waiting = state_.position.mixture->waiting;
  while (state_.steps < mixture_.steps && place < kBlockSamples) {
    const std::size_t count = packer_->take(std::span(drawn_->pool).subspan(place), false, &ahead);
    if (count == 0) {
      draw(std::max(kDrawnAtOnce, drawn_->pool.size() - place));
      continue;
    }
    block.plan.append_step(packer_->pack(state_.steps),
                           [this](std::uint32_t index) { return drawn_->items[index].id; });
    ++state_.steps;
    for (const std::size_t taken : ahead) drawn_->pool[place + taken].length = 0;
    advance(ahead.empty() ? place + count : place + ahead.back() + 1);
    place += count;
    waiting.clear();
    for (std::size_t i = place; i < drawn_->passed; ++i) {
      if (drawn_->pool[i].length > 0) waiting.push_back(drawn_->items[i].id);
    }
    block.after.push_back(state_.position);
  }
  return true;
}

std::vector<SampleId> MixturePlanner::pending_pieces() const {
  std::vector<SampleId> pending = state_.position.mixture->waiting;
  for (const PartCursor& cursor : cursors_at(*state_.position.mixture)) {
    if (cursor.next_piece == 0) continue;
    for (std::uint64_t piece = cursor.next_piece; piece * options_.cap < cursor.sample.length; ++piece) {
      pending.push_back(cursor.sample.id | piece << kPieceShift);
    }
  }
  return pending;
}

Plan make_mixture_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
                       const Mixture& mixture, std::string fingerprint) {
  const LengthsInMemory source(lengths, std::move(fingerprint));
  MixturePlanner planner(source, options, mixture);
  Plan plan(options, lengths.size(), source.fingerprint());
  for (PlannedBlock block; planner.next_block(block);) plan.append(block.plan);
  plan.set_mixture(std::make_shared<PlannedMixture>(
      PlannedMixture{mixture, planner.state().position.mixture->drawn, planner.pending_pieces()}));
  return plan;
}

}  // namespace lockstep::data
