#include "runtime/data/plan/mixture/mixture_planner.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/error.h"
#include "runtime/data/plan/order/order.h"
#include "runtime/data/plan/order/random.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBlockSamples = EpochOrder::kShardSamples * EpochOrder::kBlockShards;
// Samples that are drawn at once: more than most steps need would be drawn again by the next range.
constexpr std::size_t kDrawnAtOnce = 1024;

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
      packer_(options) {
  if (source.size() >= kMaxSamples) fail("{} samples are more than a mixture can have", source.size());
  options_.epoch = 0;
  state_.data = source.fingerprint();
  state_.order = order_name(mixture_, options_);
  const std::vector<std::uint64_t> none(mixture_.parts.size(), 0);
  state_.position.mixture = {.drawn = none, .piece = none, .tokens = none};
}

MixturePlanner::MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                               const PlanState& state)
    : MixturePlanner(source, options, std::move(mixture)) {
  if (state.data != state_.data) {
    fail("cannot resume: the state is of other data ({}) than these ({})", state.data, state_.data);
  }
  if (state.order != state_.order) {
    fail("cannot resume: the state is of another mixture or order ({}) than this ({})", state.order,
         state_.order);
  }
  const auto& position = state.position.mixture;
  const std::size_t parts = mixture_.parts.size();
  if (!position || position->drawn.size() != parts || position->piece.size() != parts ||
      position->tokens.size() != parts) {
    fail("cannot resume: the state does not say where the mixture's {} data sets are", parts);
  }
  for (std::size_t part = 0; part < parts; ++part) {
    if (position->piece[part] > 0 && position->drawn[part] == 0) {
      fail("cannot resume: the state is in the middle of a sample of '{}', and has drawn none of it",
           mixture_.parts[part].name);
    }
  }
  state_ = state;
}

// Draws anew from state_, as the range of its next step says.
void MixturePlanner::begin_range() {
  const std::size_t range = mixture_.range_of(state_.steps);
  MixturePosition& position = *state_.position.mixture;
  if (state_.steps == mixture_.ranges[range].first_step) {
    std::fill(position.tokens.begin(), position.tokens.end(), 0);
  }
  shares_ = mixture_.ranges[range].weights;
  const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  for (double& share : shares_) share /= sum;
  options_.longest = mixture_.ranges[range].longest;
  tokens_ = position.tokens;
  all_tokens_ = std::accumulate(tokens_.begin(), tokens_.end(), std::uint64_t{0});
  sources_ = sources_at(position);
  pool_.clear();
  drawn_.clear();
}

std::vector<MixturePlanner::Source> MixturePlanner::sources_at(const MixturePosition& position) const {
  std::vector<Source> sources;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < mixture_.parts.size(); ++part) {
    const std::size_t samples = mixture_.parts[part].samples;
    const std::uint64_t piece = position.piece[part];
    const std::uint64_t complete = position.drawn[part] - (piece > 0 ? 1 : 0);
    Source source{DatasetStream(source_, begin, samples, options_.order,
                                Random(options_.seed, part, 0).next(), complete),
                  {},
                  piece};
    if (piece > 0) source.sample = source.stream.next();
    sources.push_back(std::move(source));
    begin += samples;
  }
  return sources;
}

std::size_t MixturePlanner::neediest_part() const {
  std::size_t best = shares_.size();
  double most = 0;
  for (std::size_t part = 0; part < shares_.size(); ++part) {
    if (!(shares_[part] > 0)) continue;
    const double behind =
        shares_[part] * static_cast<double>(all_tokens_) - static_cast<double>(tokens_[part]);
    if (best < shares_.size() && behind <= most) continue;
    best = part;
    most = behind;
  }
  return best;
}

std::uint64_t MixturePlanner::length_in_range(std::uint32_t length) const {
  return options_.longest > 0 ? std::min<std::uint64_t>(options_.longest, length) : length;
}

// Tokens that the plan takes of a piece of a sample; 0: it is skipped.
std::uint32_t MixturePlanner::planned(const DatasetStream::Sample& sample, std::uint64_t piece,
                                      const std::string& part) const {
  const SampleId number = sample_of(sample.id);
  const std::uint64_t cap = options_.cap;
  if (sample.length == 0) fail("sample {} (of '{}') is empty: remove it from the data", number, part);
  const std::uint64_t length = length_in_range(sample.length);
  if (length <= cap) return static_cast<std::uint32_t>(length);
  if (options_.too_long == TooLong::refuse) {
    fail(
        "sample {} (of '{}') has {} tokens, over the cap of {} per micro-batch: raise the cap, shorten the "
        "sample, or choose to truncate, skip or split such samples (too_long)",
        number, part, sample.length, cap);
  }
  if (options_.too_long == TooLong::split && (length - 1) / cap >= kMaxPieces) {
    fail("sample {} (of '{}') has {} tokens, more than {} pieces of the cap of {}: raise the cap", number,
         part, sample.length, kMaxPieces, cap);
  }
  return options_.too_long == TooLong::skip ? 0
                                            : static_cast<std::uint32_t>(std::min(cap, length - piece * cap));
}

void MixturePlanner::draw_one() {
  const std::size_t part = neediest_part();
  Source& source = sources_[part];
  // What a range cuts off of a sample that was begun before it is left out.
  if (source.next_piece * options_.cap >= length_in_range(source.sample.length)) source.next_piece = 0;
  if (source.next_piece == 0) source.sample = source.stream.next();
  const std::uint64_t piece = source.next_piece;
  const std::uint32_t length = planned(source.sample, piece, mixture_.parts[part].name);
  const bool split = options_.too_long == TooLong::split;
  source.next_piece =
      split && (piece + 1) * options_.cap < length_in_range(source.sample.length) ? piece + 1 : 0;
  pool_.push_back({static_cast<std::uint32_t>(pool_.size()), length});
  drawn_.push_back(
      {source.sample.id | piece << kPieceShift, static_cast<std::uint32_t>(part), source.next_piece});
  tokens_[part] += length;
  all_tokens_ += length;
}

void MixturePlanner::draw(std::size_t count) {
  std::size_t skipped = 0;  // one after the other, so of one part: its turn goes on until it gives tokens
  for (std::size_t i = 0; i < count || skipped > 0; ++i) {
    draw_one();
    skipped = pool_.back().length == 0 ? skipped + 1 : 0;
    const MixturePart& part = mixture_.parts[drawn_.back().part];
    // One sample that fits may be an epoch's first and the next one's last.
    if (skipped >= 2 * part.samples) {
      fail("every sample of '{}' is longer than the cap of {}", part.name, options_.cap);
    }
  }
}

// Moves a position past items of the pool.
void MixturePlanner::advance(MixturePosition& position, std::size_t begin, std::size_t end) const {
  for (std::size_t i = begin; i < end; ++i) {
    const Drawn& drawn = drawn_[i];
    if (piece_of(drawn.id) == 0) ++position.drawn[drawn.part];
    position.piece[drawn.part] = drawn.next_piece;
    position.tokens[drawn.part] += pool_[i].length;
  }
}

bool MixturePlanner::next_block(PlannedBlock& block) {
  const bool more = state_.steps < mixture_.steps;
  if (more) begin_range();
  block.plan = Plan(options_, source_.size(), state_.data);
  block.start = state_;
  block.after.clear();
  if (!more) return false;
  const std::uint64_t end = mixture_.end_of(mixture_.range_of(state_.steps));
  std::size_t place = 0;
  while (state_.steps < end && place < kBlockSamples) {
    const std::size_t count = packer_.take(std::span(pool_).subspan(place), false);
    if (count == 0) {
      draw(std::max(kDrawnAtOnce, pool_.size() - place));
      continue;
    }
    block.plan.append_step(packer_.pack(state_.steps),
                           [this](std::uint32_t index) { return drawn_[index].id; });
    ++state_.steps;
    advance(*state_.position.mixture, place, place + count);
    block.after.push_back(state_.position);
    place += count;
  }
  return true;
}

std::vector<SampleId> MixturePlanner::pending_pieces() const {
  std::vector<SampleId> pending;
  for (const Source& source : sources_at(*state_.position.mixture)) {
    if (source.next_piece == 0) continue;
    const std::uint64_t length = length_in_range(source.sample.length);
    for (std::uint64_t piece = source.next_piece; piece * options_.cap < length; ++piece) {
      pending.push_back(source.sample.id | piece << kPieceShift);
    }
  }
  return pending;
}

void MixturePlanner::change(const Cost& cost, const std::vector<double>& speeds) {
  options_ = with_cost(options_, cost, speeds);
  packer_ = StepPacker(options_);
}

}  // namespace lockstep::data
