#include "runtime/data/plan_check.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "common/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kNowhere = ~std::size_t{0};

// Tokens of a sample, or of the piece of one that was split at the cap; 0 where there is no such piece.
std::uint64_t tokens_in_plan(SampleId id, std::uint64_t length, const PlanOptions& options) {
  const std::uint64_t piece = id >> kPieceShift;
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
  const std::vector<std::size_t>& samples() const { return steps_; }
  std::size_t pieces() const { return pieces_.size(); }

 private:
  std::vector<std::size_t> steps_;
  std::unordered_map<SampleId, std::size_t> pieces_;
};

void check_missing(const Coverage& coverage, const std::vector<std::uint32_t>& tokens,
                   const PlanOptions& options) {
  std::size_t missing = 0;
  std::size_t first = 0;
  std::size_t pieces = 0;
  for (std::size_t id = tokens.size(); id-- > 0;) {
    if (options.too_long == TooLong::split) pieces += (tokens[id] - 1) / options.cap;
    if (coverage.samples()[id] != kNowhere) continue;
    if (options.too_long == TooLong::skip && tokens[id] > options.cap) continue;
    ++missing;
    first = id;
  }
  if (options.tail == Tail::drop) return;
  if (missing > 0) {
    fail("{} of {} samples are in no step, the first is sample {}", missing, tokens.size(), first);
  }
  if (coverage.pieces() != pieces) {
    fail("{} of {} pieces of samples that were split are in no step", pieces - coverage.pieces(), pieces);
  }
}

}  // namespace

CheckedPlan check_plan(const Plan& plan, const Lengths& lengths) {
  const PlanOptions& options = plan.options();
  const std::vector<std::uint32_t>& tokens = lengths.tokens;
  if (plan.samples() != tokens.size()) {
    fail("the plan is for {} samples, the data have {}", plan.samples(), tokens.size());
  }
  if (plan.fingerprint() != lengths.fingerprint) {
    fail("the plan was made for other data or another order: its fingerprint is {}, the data's is {}",
         plan.fingerprint(), lengths.fingerprint);
  }
  Coverage coverage(tokens.size());
  CheckedPlan checked;
  double ratios = 0;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    double greatest = 0;
    double all = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      double cost = 0;
      for (int m = 0; m < options.accumulate; ++m) {
        std::uint64_t sum = 0;
        std::uint64_t longest = 0;
        const auto samples = plan.micro_batch(step, rank, m);
        for (const SampleId id : samples) {
          const SampleId sample = id & ((SampleId{1} << kPieceShift) - 1);
          if (sample >= tokens.size()) {
            fail("step {}, rank {}, micro-batch {}: there is no sample {}", step, rank, m, sample);
          }
          const std::uint64_t length = tokens_in_plan(id, tokens[sample], options);
          if (length == 0) {
            fail("step {}, rank {}, micro-batch {}: sample {} has no piece {}", step, rank, m, sample,
                 id >> kPieceShift);
          }
          std::size_t& seen = coverage.step_of(id);
          const bool may_repeat = options.tail == Tail::repeat && step + 1 == plan.steps();
          if (seen != kNowhere && !may_repeat) {
            fail("step {}, rank {}, micro-batch {}: sample {} was already in step {}", step, rank, m, sample,
                 seen);
          }
          seen = step;
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
      greatest = std::max(greatest, cost);
    }
    if (step + 1 < plan.steps() || step == 0) {
      ratios += all > 0 ? greatest * options.ranks / all : 1;
      ++checked.counted;
    }
  }
  check_missing(coverage, tokens, options);
  checked.imbalance_cost = checked.counted > 0 ? ratios / static_cast<double>(checked.counted) : 1;
  return checked;
}

}  // namespace lockstep::data
