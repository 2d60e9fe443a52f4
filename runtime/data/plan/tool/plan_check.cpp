#include "runtime/data/plan/tool/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/error.h"
#include "runtime/data/plan/mixture/mixture_coverage.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kNowhere = ~std::size_t{0};

// Tokens of a sample, or of the piece of one that was split at the cap; 0 where there is no such piece.
std::uint64_t tokens_in_plan(SampleId id, std::uint64_t length, const PlanOptions& options) {
  const std::uint64_t piece = id >> kPieceShift;
  if (options.longest > 0) length = std::min(length, options.longest);
  if (options.too_long == TooLong::split) {
    return piece * options.cap < length ? std::min<std::uint64_t>(options.cap, length - piece * options.cap)
                                        : 0;
  }
  if (piece > 0) return 0;
  return options.too_long == TooLong::truncate ? std::min<std::uint64_t>(options.cap, length) : length;
}

// Tokens of a padded row whose longest sample has so many.
std::uint64_t padded_row(std::uint64_t longest, const PlanOptions& options) {
  const std::uint64_t rounded =
      (longest + options.pad_multiple - 1) / options.pad_multiple * options.pad_multiple;
  return rounded <= options.cap ? rounded : std::max(longest, options.cap);
}

// In which step each sample, and each piece after a sample's first, was seen.
class Coverage {
 public:
  explicit Coverage(std::size_t samples) : steps_(samples, kNowhere) {}

  std::size_t& step_of(SampleId id) {
    if (id < steps_.size()) return steps_[id];
    return pieces_.emplace(id, kNowhere).first->second;
  }
  bool has(SampleId id) const { return id < steps_.size() ? steps_[id] != kNowhere : pieces_.contains(id); }

 private:
  std::vector<std::size_t> steps_;
  std::unordered_map<SampleId, std::size_t> pieces_;
};

// How many samples and pieces are in no step: those of a step of fewer samples than ranks, where it was
// dropped.
std::size_t check_missing(const Coverage& coverage, const std::vector<std::uint32_t>& tokens,
                          const PlanOptions& options) {
  std::size_t missing = 0;
  std::size_t first = 0;
  for (std::size_t sample = tokens.size(); sample-- > 0;) {
    if (options.too_long == TooLong::skip && tokens[sample] > options.cap) continue;
    for (SampleId id = sample;; id += SampleId{1} << kPieceShift) {
      const std::uint64_t length = tokens_in_plan(id, tokens[sample], options);
      if (length == 0) break;
      if (!coverage.has(id)) {
        ++missing;
        first = sample;
      }
      if (options.too_long != TooLong::split) break;
    }
  }
  if (missing == 0) return 0;
  if (options.tail == Tail::drop && missing < static_cast<std::size_t>(options.ranks)) return missing;
  fail("{}{} of {} samples are in no step, the first is of sample {}{}", missing,
       options.too_long == TooLong::split ? " pieces" : "", tokens.size(), first,
       options.tail == Tail::drop
           ? fmt::format(": a dropped step has fewer samples than the {} ranks", options.ranks)
           : std::string());
}

}  // namespace

// Each epoch of a mixture's data sets, and which of them a range draws from.
void check_mixture_coverage(const Plan& plan, const std::vector<std::uint32_t>& tokens) {
  const Mixture& mixture = plan.mixture()->mixture;
  if (mixture.samples() != tokens.size()) {
    fail("the plan's data sets have {} samples together, the data {}", mixture.samples(), tokens.size());
  }
  if (plan.steps() != mixture.steps) {
    fail("the plan has {} steps of the mixture's {}", plan.steps(), mixture.steps);
  }
  std::vector<std::size_t> ends;
  for (const MixturePart& part : mixture.parts) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + part.samples);
  }
  MixtureCoverage coverage(plan, tokens);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const MixtureRange& range = mixture.ranges[mixture.range_of(step)];
    for (const SampleId id : plan.step_samples(step)) {
      const SampleId sample = id & (kMaxSamples - 1);
      if (sample >= tokens.size()) fail("step {}: there is no sample {}", step, sample);
      const auto part =
          static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin());
      if (!(range.weights[part] > 0)) {
        fail("step {} has sample {} of '{}', whose weight is 0 there", step, sample,
             mixture.parts[part].name);
      }
      coverage.add(id);
    }
  }
  for (const SampleId id : plan.mixture()->left) coverage.add(id);
  const MixtureCoverage::Counts counts = coverage.count();
  if (!counts.first.empty()) fail("{}", counts.first);
}

CheckedPlan check_plan(const Plan& plan, const Lengths& lengths) {
  const std::vector<std::uint32_t>& tokens = lengths.tokens;
  if (plan.samples() != tokens.size()) {
    fail("the plan is for {} samples, the data have {}", plan.samples(), tokens.size());
  }
  if (plan.fingerprint() != lengths.fingerprint) {
    fail("the plan was made for other data or another order: its fingerprint is {}, the data's is {}",
         plan.fingerprint(), lengths.fingerprint);
  }
  if (plan.mixture() != nullptr) check_mixture_coverage(plan, tokens);
  // Of an id; a mixture's have the epoch beside it.
  const SampleId numbers = (plan.mixture() != nullptr ? kMaxSamples : SampleId{1} << kPieceShift) - 1;
  Coverage coverage(tokens.size());
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const PlanOptions options = options_of_step(plan, step);
    if (plan.step_samples(step).empty()) fail("step {} has no samples on any rank", step);
    for (int rank = 0; rank < options.ranks; ++rank) {
      const std::size_t micro_batches = plan.micro_batches(step, rank);
      if (options.equal_micro_batches && micro_batches != plan.micro_batches(step, 0)) {
        fail("step {}: rank {} has {} micro-batches and rank 0 has {}; the plan was made for equal numbers",
             step, rank, micro_batches, plan.micro_batches(step, 0));
      }
      for (std::size_t m = 0; m < micro_batches; ++m) {
        const auto refuse = [&](const std::string& why) {
          fail("step {}, rank {}, micro-batch {}: {}", step, rank, m, why);
        };
        const auto samples = plan.micro_batch(step, rank, m);
        std::uint64_t sum = 0;
        std::uint64_t longest = 0;
        for (const SampleId id : samples) {
          const SampleId sample = id & numbers;
          if (sample >= tokens.size()) refuse(fmt::format("there is no sample {}", sample));
          const std::uint64_t length = tokens_in_plan(id, tokens[sample], options);
          if (length == 0) refuse(fmt::format("sample {} has no piece {}", sample, id >> kPieceShift));
          if (plan.mixture() == nullptr) {
            std::size_t& seen = coverage.step_of(id);
            const bool may_repeat = options.tail == Tail::repeat && step + 1 == plan.steps();
            if (seen != kNowhere && !may_repeat) {
              refuse(fmt::format("sample {} was already in step {}", sample, seen));
            }
            seen = step;
          }
          sum += length;
          longest = std::max(longest, length);
        }
        if (options.padded) sum = padded_row(longest, options) * samples.size();
        if (sum > options.cap) refuse(fmt::format("{} tokens, over the cap of {}", sum, options.cap));
      }
    }
  }
  CheckedPlan checked;
  if (plan.mixture() != nullptr) return checked;
  const PlanOptions& options = plan.options();
  if (options.too_long == TooLong::skip) {
    checked.skipped = static_cast<std::size_t>(std::count_if(
        tokens.begin(), tokens.end(), [&](std::uint32_t length) { return length > options.cap; }));
  }
  checked.dropped = checked.skipped + check_missing(coverage, tokens, options);
  return checked;
}

}  // namespace lockstep::data
