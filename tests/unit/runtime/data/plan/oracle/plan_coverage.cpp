#include "tests/unit/runtime/data/plan/oracle/plan_coverage.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

// How many of the first `epochs` epochs have this number.
std::uint64_t epochs_with(std::uint64_t number, std::uint64_t epochs) {
  return epochs > number ? (epochs - number - 1) / kEpochNumbers + 1 : 0;
}

}  // namespace

PlanCoverage::PlanCoverage(const Plan& plan, std::span<const std::uint32_t> lengths)
    : plan_(plan), lengths_(lengths), whole_uses_(lengths.size()) {
  if (plan.mixture() == nullptr) {
    if (!lengths.empty()) parts_ = {{"", 0, lengths.size(), lengths.size()}};
    return;
  }
  const PlannedMixture& planned = *plan.mixture();
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < planned.drawn.size(); ++i) {
    const MixturePart& part = planned.mixture.parts[i];
    parts_.push_back({part.name, begin, part.samples, planned.drawn[i]});
    begin += part.samples;
  }
  for (const SampleId id : planned.left) add(id);
}

std::uint32_t PlanCoverage::uses(SampleId id) const {
  if (id < whole_uses_.size()) return whole_uses_[id];
  const auto found = other_uses_.find(id);
  return found == other_uses_.end() ? 0 : found->second;
}

std::size_t PlanCoverage::part_of(SampleId id) const {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), sample_of(id),
                       [](SampleId sample, const PartUse& part) { return sample < part.begin; });
  return static_cast<std::size_t>(after - parts_.begin()) - 1;
}

// The pieces of a sample that every epoch has; 0 if it may be skipped.
std::uint64_t PlanCoverage::pieces_in_every_epoch(std::uint64_t length) const {
  const PlanOptions& options = plan_.options();
  if (options.too_long == TooLong::skip && length > options.cap) return 0;
  if (options.too_long != TooLong::split) return 1;
  return (length + options.cap - 1) / options.cap;
}

std::string PlanCoverage::describe(SampleId id, std::uint64_t expected) const {
  const std::string piece = piece_of(id) > 0 ? fmt::format("piece {} of ", piece_of(id)) : std::string();
  const std::string use = fmt::format("is used {} times instead of {}", uses(id), expected);
  if (plan_.mixture() == nullptr) return fmt::format("{}sample {} {}", piece, sample_of(id), use);
  return fmt::format("{}sample {} of '{}' {} in epoch {} of that data set", piece, sample_of(id),
                     parts_[part_of(id)].name, use, epoch_of(id));
}

void PlanCoverage::count_missing(const PartUse& part, Counts& counts) const {
  const bool mixture = plan_.mixture() != nullptr;
  const std::uint64_t complete = part.drawn / part.samples;  // epochs
  const std::uint64_t last_drawn = part.drawn % part.samples;
  const std::uint64_t begun = complete + (last_drawn > 0 ? 1 : 0);
  std::uint64_t last_used = 0;     // samples that are used in the incomplete epoch
  std::uint64_t last_skipped = 0;  // samples that may be skipped in it
  for (SampleId sample = part.begin; sample < part.begin + part.samples; ++sample) {
    const std::uint64_t pieces = pieces_in_every_epoch(lengths_[sample]);
    if (pieces == 0 && !mixture) ++counts.skipped;
    for (std::uint64_t number = 0; number < std::min(begun, kEpochNumbers); ++number) {
      const SampleId first = sample | number << kEpochShift;
      const std::uint64_t in_complete = epochs_with(number, complete);
      for (std::uint64_t piece = 0; piece < pieces; ++piece) {
        const SampleId id = first | piece << kPieceShift;
        // In a mixture, also the pieces of a sample of the incomplete epoch must be there.
        const std::uint64_t expected = mixture && piece > 0 ? uses(first) : in_complete;
        if (uses(id) >= expected) continue;
        counts.missing += expected - uses(id);
        if (counts.first_error.empty()) counts.first_error = describe(id, expected);
      }
      if (epochs_with(number, begun) == in_complete) continue;
      if (uses(first) > in_complete) ++last_used;
      if (pieces == 0) ++last_skipped;
    }
  }
  const std::uint64_t extra = std::max(last_used, last_drawn) - last_drawn;
  const std::uint64_t lacking = last_drawn - std::min(last_used + last_skipped, last_drawn);
  counts.duplicated += extra;
  counts.missing += lacking;
  if (extra + lacking > 0 && counts.first_error.empty()) {
    counts.first_error = fmt::format("{} samples of '{}' are in epoch {} of that data set, but {} were drawn",
                                     last_used, part.name, complete % kEpochNumbers, last_drawn);
  }
}

PlanCoverage::Counts PlanCoverage::count() const {
  Counts counts;
  for (const PartUse& part : parts_) count_missing(part, counts);
  const auto count_duplicates = [&](SampleId id) {
    const PartUse& part = parts_[part_of(id)];
    const std::uint64_t expected = epochs_with(epoch_of(id), (part.drawn + part.samples - 1) / part.samples);
    if (uses(id) <= expected) return;
    counts.duplicated += uses(id) - expected;
    if (counts.first_error.empty()) counts.first_error = describe(id, expected);
  };
  for (SampleId id = 0; id < whole_uses_.size(); ++id) count_duplicates(id);
  for (const auto& [id, times] : other_uses_) count_duplicates(id);
  return counts;
}

}  // namespace lockstep::data
