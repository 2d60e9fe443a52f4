#include "runtime/data/plan/mixture/mixture_coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::data {
namespace {

// A sample's number holds its epoch modulo this.
constexpr std::uint64_t kEpochs = 256;

// How many of the first `epochs` epochs have this number.
std::uint64_t epochs_called(std::uint64_t number, std::uint64_t epochs) {
  return epochs > number ? (epochs - number - 1) / kEpochs + 1 : 0;
}

}  // namespace

MixtureCoverage::MixtureCoverage(const Plan& plan, std::span<const std::uint32_t> lengths)
    : plan_(plan), lengths_(lengths) {
  for (const MixtureRange& range : plan.mixture()->mixture.ranges) {
    if (range.longest > 0) shortest_cut_ = std::min(shortest_cut_, range.longest);
  }
}

std::uint64_t MixtureCoverage::times(SampleId id) const {
  const auto found = times_.find(id);
  return found == times_.end() ? 0 : found->second;
}

// Pieces that every epoch has of a sample, whatever a range cuts off; 0 where it may be skipped.
std::uint64_t MixtureCoverage::pieces_at_least(std::uint64_t length) const {
  const std::uint64_t cap = plan_.options().cap;
  if (plan_.options().too_long == TooLong::skip && length > cap) return 0;
  if (plan_.options().too_long != TooLong::split) return 1;
  return (std::min(length, shortest_cut_) + cap - 1) / cap;
}

void MixtureCoverage::count_part(const Part& part, Counts& counts) const {
  const std::uint64_t whole = part.drawn / part.samples;
  const std::uint64_t begun = whole + (part.drawn % part.samples > 0 ? 1 : 0);
  const auto tell = [&](SampleId id, std::uint64_t is, const std::string& should) {
    if (!counts.first.empty()) return;
    counts.first =
        fmt::format("sample {} (of '{}'), piece {}, is {} times in epoch {} of its data set, not {}",
                    sample_of(id), part.name, piece_of(id), is, epoch_of(id), should);
  };
  std::uint64_t in_last = 0;      // samples that came in the epoch that is not over
  std::uint64_t may_be_last = 0;  // and those that may have been skipped there
  for (std::uint64_t sample = part.begin; sample < part.begin + part.samples; ++sample) {
    const std::uint64_t least = pieces_at_least(lengths_[sample]);
    for (std::uint64_t number = 0; number < std::min(begun, kEpochs); ++number) {
      const SampleId first = sample | number << kEpochShift;
      const std::uint64_t over = epochs_called(number, whole);
      const std::uint64_t most = epochs_called(number, begun);
      for (std::uint64_t piece = 0; piece == 0 || piece < least; ++piece) {
        const SampleId id = first | piece << kPieceShift;
        const std::uint64_t is = times(id);
        // A piece comes as often as its sample does.
        const std::uint64_t wanted = least == 0 ? 0 : piece == 0 ? over : times(first);
        if (is < wanted) {
          counts.missing += wanted - is;
          tell(id, is, fmt::format("{}", wanted));
        }
      }
      if (most == over) continue;
      if (times(first) > over) ++in_last;
      if (least == 0) ++may_be_last;
    }
  }
  const std::uint64_t drawn_of_last = part.drawn % part.samples;
  if (in_last > drawn_of_last) counts.twice += in_last - drawn_of_last;
  if (in_last + may_be_last < drawn_of_last) counts.missing += drawn_of_last - in_last - may_be_last;
  if ((in_last > drawn_of_last || in_last + may_be_last < drawn_of_last) && counts.first.empty()) {
    counts.first = fmt::format("{} samples of '{}' are in epoch {} of their data set, of which {} were drawn",
                               in_last, part.name, whole % kEpochs, drawn_of_last);
  }
}

MixtureCoverage::Counts MixtureCoverage::count() const {
  Counts counts;
  const PlannedMixture& planned = *plan_.mixture();
  std::vector<std::uint64_t> begun;
  std::uint64_t begin = 0;
  std::vector<std::uint64_t> ends;
  for (std::size_t i = 0; i < planned.mixture.parts.size(); ++i) {
    const MixturePart& part = planned.mixture.parts[i];
    count_part({part.name, begin, part.samples, planned.drawn[i]}, counts);
    begin += part.samples;
    ends.push_back(begin);
    begun.push_back((planned.drawn[i] + part.samples - 1) / part.samples);
  }
  for (const auto& [id, is] : times_) {
    const auto part =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), sample_of(id)) - ends.begin());
    const std::uint64_t most = epochs_called(epoch_of(id), begun[part]);
    if (is <= most) continue;
    counts.twice += is - most;
    if (counts.first.empty()) {
      counts.first =
          fmt::format("sample {} (of '{}'), piece {}, is {} times in epoch {} of its data set, not {}",
                      sample_of(id), planned.mixture.parts[part].name, piece_of(id), is, epoch_of(id), most);
    }
  }
  return counts;
}

}  // namespace lockstep::data
