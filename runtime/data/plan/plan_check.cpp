#include "runtime/data/plan/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/error.h"
#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/mixture_coverage.h"

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

// How many samples and pieces are in no step. A step that is dropped at the epoch's end leaves at least one
// micro-batch empty: more than the others hold cannot be missing.
std::size_t check_missing(const Coverage& coverage, const std::vector<std::uint32_t>& tokens,
                          const PlanOptions& options) {
  std::size_t missing = 0;
  std::size_t first = 0;
  std::uint64_t missing_tokens = 0;
  for (std::size_t sample = tokens.size(); sample-- > 0;) {
    if (options.too_long == TooLong::skip && tokens[sample] > options.cap) continue;
    for (SampleId id = sample;; id += SampleId{1} << kPieceShift) {
      const std::uint64_t length = tokens_in_plan(id, tokens[sample], options);
      if (length == 0) break;
      if (!coverage.has(id)) {
        ++missing;
        first = sample;
        missing_tokens += length;
      }
      if (options.too_long != TooLong::split) break;
    }
  }
  if (missing == 0) return 0;
  const double most = static_cast<double>(options.cap) *
                      (static_cast<double>(options.ranks) * static_cast<double>(options.accumulate) - 1);
  if (options.tail == Tail::drop && static_cast<double>(missing_tokens) <= most) return missing;
  fail("{}{} of {} samples are in no step, the first is of sample {}{}", missing,
       options.too_long == TooLong::split ? " pieces" : "", tokens.size(), first,
       options.tail == Tail::drop ? fmt::format(": {} tokens, more than one step can drop", missing_tokens)
                                  : std::string());
}

}  // namespace

// A mixture's data sets, each epoch for itself, and which of them a range draws from.
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
  const auto accumulate = static_cast<std::size_t>(plan.options().accumulate);
  MixtureCoverage coverage(plan, tokens);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const MixtureRange& range = mixture.ranges[mixture.range_of(step)];
    for_each_sample(plan, step * accumulate, (step + 1) * accumulate, [&](SampleId id) {
      const SampleId sample = id & (kMostSamples - 1);
      if (sample >= tokens.size()) fail("step {}: there is no sample {}", step, sample);
      const auto part =
          static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin());
      if (!(range.weights[part] > 0)) {
        fail("step {} has sample {} of '{}', whose weight is 0 there", step, sample,
             mixture.parts[part].name);
      }
      coverage.add(id);
    });
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
  const SampleId numbers = (plan.mixture() != nullptr ? kMostSamples : SampleId{1} << kPieceShift) - 1;
  Coverage coverage(tokens.size());
  CheckedPlan checked;
  double ratios = 0;
  std::vector<double> speeds = plan.options().speeds;
  speeds.resize(static_cast<std::size_t>(plan.options().ranks), 1.0);
  const double speed_of_all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const PlanOptions options = options_of_step(plan, step);
    double greatest = 0;
    double all = 0;
    bool empty = true;
    for (int rank = 0; rank < options.ranks; ++rank) {
      double cost = 0;
      for (int m = 0; m < options.accumulate; ++m) {
        std::uint64_t sum = 0;
        std::uint64_t longest = 0;
        const auto samples = plan.micro_batch(step, rank, m);
        empty = empty && samples.empty();
        for (const SampleId id : samples) {
          const SampleId sample = id & numbers;
          if (sample >= tokens.size()) {
            fail("step {}, rank {}, micro-batch {}: there is no sample {}", step, rank, m, sample);
          }
          const std::uint64_t length = tokens_in_plan(id, tokens[sample], options);
          if (length == 0) {
            fail("step {}, rank {}, micro-batch {}: sample {} has no piece {}", step, rank, m, sample,
                 id >> kPieceShift);
          }
          if (plan.mixture() == nullptr) {
            std::size_t& seen = coverage.step_of(id);
            const bool may_repeat = options.tail == Tail::repeat && step + 1 == plan.steps();
            if (seen != kNowhere && !may_repeat) {
              fail("step {}, rank {}, micro-batch {}: sample {} was already in step {}", step, rank, m,
                   sample, seen);
            }
            seen = step;
          }
          sum += length;
          longest = std::max(longest, length);
          const auto l = static_cast<double>(length);
          if (!options.padded) cost += options.cost.a * l + options.cost.b * l * l;
        }
        if (options.padded && !samples.empty()) {
          const std::uint64_t rounded =
              (longest + options.pad_multiple - 1) / options.pad_multiple * options.pad_multiple;
          const std::uint64_t row = rounded <= options.cap ? rounded : std::max(longest, options.cap);
          sum = row * samples.size();
          const auto l = static_cast<double>(row);
          cost += static_cast<double>(samples.size()) * (options.cost.a * l + options.cost.b * l * l);
        }
        if (sum > options.cap) {
          fail("step {}, rank {}, micro-batch {}: {} tokens, over the cap of {}", step, rank, m, sum,
               options.cap);
        }
      }
      all += cost;
      greatest = std::max(greatest, cost / speeds[static_cast<std::size_t>(rank)]);
    }
    if (empty) fail("step {} has no samples on any rank", step);
    if (step + 1 < plan.steps() || step == 0 || plan.mixture() != nullptr) {
      ratios += all > 0 ? greatest * speed_of_all / all : 1;
      ++checked.counted;
    }
  }
  if (plan.mixture() == nullptr) checked.dropped = check_missing(coverage, tokens, plan.options());
  checked.imbalance_cost = checked.counted > 0 ? ratios / static_cast<double>(checked.counted) : 1;
  return checked;
}

}  // namespace lockstep::data
