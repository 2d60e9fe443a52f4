#include "runtime/data/plan_check.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "common/error.h"

namespace lockstep::data {

void check_plan(const Plan& plan, const Lengths& lengths) {
  const PlanOptions& options = plan.options();
  const std::vector<std::uint32_t>& tokens = lengths.tokens;
  if (plan.samples() != tokens.size()) {
    fail("the plan is for {} samples, the data have {}", plan.samples(), tokens.size());
  }
  if (plan.fingerprint() != lengths.fingerprint) {
    fail("the plan was made for other data or another order: its fingerprint is {}, the data's is {}",
         plan.fingerprint(), lengths.fingerprint);
  }
  constexpr std::size_t nowhere = ~std::size_t{0};
  std::vector<std::size_t> step_of(tokens.size(), nowhere);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (int rank = 0; rank < options.ranks; ++rank) {
      for (int m = 0; m < options.accumulate; ++m) {
        std::uint64_t sum = 0;
        std::uint64_t longest = 0;
        const auto samples = plan.micro_batch(step, rank, m);
        for (const SampleId id : samples) {
          if (id >= tokens.size()) {
            fail("step {}, rank {}, micro-batch {}: there is no sample {}", step, rank, m, id);
          }
          if (step_of[id] != nowhere) {
            fail("step {}, rank {}, micro-batch {}: sample {} was already in step {}", step, rank, m, id,
                 step_of[id]);
          }
          step_of[id] = step;
          sum += tokens[id];
          longest = std::max<std::uint64_t>(longest, tokens[id]);
        }
        if (options.padded) sum = longest * samples.size();
        if (sum > options.cap) {
          fail("step {}, rank {}, micro-batch {}: {} tokens, over the cap of {}", step, rank, m, sum,
               options.cap);
        }
      }
    }
  }
  const auto missing = std::count(step_of.begin(), step_of.end(), nowhere);
  if (missing > 0) {
    const auto first = std::find(step_of.begin(), step_of.end(), nowhere) - step_of.begin();
    fail("{} of {} samples are in no step, the first is sample {}", missing, tokens.size(), first);
  }
}

}  // namespace lockstep::data
