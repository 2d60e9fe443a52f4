#include "tests/unit/runtime/data/plan/oracle/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/unit/runtime/data/plan/oracle/plan_coverage.h"

namespace lockstep::data {
namespace {

// Tokens of a sample, or of a piece of a split sample; 0 if there is no such piece.
std::uint64_t tokens_in_plan(SampleId id, std::uint64_t length, const PlanOptions& options) {
  const std::uint64_t begin = piece_of(id) * options.cap;
  if (begin >= length || (begin > 0 && options.too_long != TooLong::split)) return 0;
  const bool cut = options.too_long == TooLong::truncate || options.too_long == TooLong::split;
  return cut ? std::min<std::uint64_t>(options.cap, length - begin) : length;
}

// The first step that has the sample or piece.
std::size_t step_with(const Plan& plan, SampleId id) {
  std::size_t step = 0;
  while (std::ranges::find(plan.step_samples(step), id) == plan.step_samples(step).end()) ++step;
  return step;
}

// Counts the samples of a micro-batch and checks everything that concerns it alone.
void check_micro_batch(const Plan& plan, std::size_t step, std::span<const SampleId> samples,
                       const PlanOptions& options, const std::vector<std::uint32_t>& tokens,
                       PlanCoverage& coverage) {
  const bool may_repeat = options.tail == Tail::repeat && step + 1 == plan.steps();
  std::uint64_t sum = 0;
  std::uint64_t longest = 0;
  for (const SampleId id : samples) {
    const SampleId sample = sample_of(id);
    if (sample >= tokens.size()) fail("there is no sample {}", sample);
    const std::uint64_t length = tokens_in_plan(id, tokens[sample], options);
    if (length == 0) fail("sample {} has no piece {}", sample, piece_of(id));
    const bool used_before = coverage.add(id) > 0;
    if (used_before && !may_repeat && plan.mixture() == nullptr) {
      fail("sample {} was already in step {}", sample, step_with(plan, id));
    }
    sum += length;
    longest = std::max(longest, length);
  }
  if (options.padded) sum = padded_length(longest, options.pad_multiple, options.cap) * samples.size();
  if (sum > options.cap) fail("{} tokens, over the cap of {}", sum, options.cap);
}

}  // namespace

void check_is_plan_of(const Plan& plan, const Lengths& lengths) {
  if (plan.samples() != lengths.tokens.size()) {
    fail("the plan is for {} samples, but the data have {}", plan.samples(), lengths.tokens.size());
  }
  if (plan.fingerprint() != lengths.fingerprint) {
    fail(
        "the plan was made for other data or another order: its fingerprint is {}, but that of the data is {}",
        plan.fingerprint(), lengths.fingerprint);
  }
}

CheckedPlan check_plan(const Plan& plan, const Lengths& lengths) {
  check_is_plan_of(plan, lengths);
  const std::vector<std::uint32_t>& tokens = lengths.tokens;
  if (plan.mixture() != nullptr && plan.steps() != plan.mixture()->mixture.steps) {
    fail("the plan has {} steps, but its mixture has {}", plan.steps(), plan.mixture()->mixture.steps);
  }
  PlanCoverage coverage(plan, tokens);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const PlanOptions& options = plan.options();
    if (plan.step_samples(step).empty()) fail("step {} has no samples on any rank", step);
    for (int rank = 0; rank < options.ranks; ++rank) {
      const std::size_t micro_batches = plan.micro_batches(step, rank);
      if (options.equal_micro_batches && micro_batches != plan.micro_batches(step, 0)) {
        fail(
            "step {}: rank {} has {} micro-batches and rank 0 has {}, but the plan was made for equal numbers",
            step, rank, micro_batches, plan.micro_batches(step, 0));
      }
      for (std::size_t m = 0; m < micro_batches; ++m) {
        try {
          check_micro_batch(plan, step, plan.micro_batch(step, rank, m), options, tokens, coverage);
        } catch (const Error& error) {
          fail("step {}, rank {}, micro-batch {}: {}", step, rank, m, error.what());
        }
      }
    }
  }
  const PlanCoverage::Counts counts = coverage.count();
  const PlanOptions& options = plan.options();
  if (plan.mixture() != nullptr) {
    if (!counts.first_error.empty()) fail("{}", counts.first_error);
    return {};
  }
  const bool may_drop = options.tail == Tail::drop;
  if (counts.missing > 0 && !(may_drop && counts.missing < static_cast<std::size_t>(options.ranks))) {
    fail("{} samples or pieces are missing: {}{}", counts.missing, counts.first_error,
         may_drop ? fmt::format(" (a dropped last step has fewer samples than the {} ranks)", options.ranks)
                  : std::string());
  }
  return {.dropped = counts.missing + counts.skipped, .skipped = counts.skipped};
}

}  // namespace lockstep::data
