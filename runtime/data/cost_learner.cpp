#include "runtime/data/cost_learner.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/median.h"
#include "runtime/comm/communicator.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMinSteps = 8;
constexpr std::size_t kRecent = 256;
// A fitted number is used if its relative standard error is at most this.
constexpr double kCertain = 0.25;
// Ranks whose times differ by less than this factor count as equal: measurements vary by as much.
constexpr double kSameSpeed = 1.05;
// A rank counts as at most this many times slower than the fastest; a larger factor is a disturbance.
constexpr double kMaxSlowness = 16;

}  // namespace

CostLearner::CostLearner(CostModel what, const Cost& cost, std::vector<double> speeds,
                         comm::Communicator* communicator, const profile::StepTimer* timer,
                         std::function<double()> step_seconds)
    : what_(what),
      communicator_(communicator),
      timer_(timer),
      step_seconds_(std::move(step_seconds)),
      fit_(kRecent) {
  learnt_.cost = cost;
  learnt_.speeds = std::move(speeds);
  if (timer_ != nullptr) steps_seen_ = timer_->totals().steps;
}

void CostLearner::begin_with(const Cost& cost, const std::vector<double>& speeds) {
  learnt_.cost = cost;
  learnt_.speeds = speeds;
}

// The seconds that the last step worked on its samples. A program that marks no phases has all its work in
// `other`.
double CostLearner::work_seconds() const {
  if (step_seconds_) return step_seconds_();
  const profile::Times& step = timer_->last_step();
  const auto of = [&](profile::Phase phase) {
    return static_cast<double>(step.phase_ns[static_cast<std::size_t>(phase)]) * 1e-9;
  };
  const double marked = of(profile::Phase::forward) + of(profile::Phase::backward);
  return marked > 0 ? marked : of(profile::Phase::other);
}

void CostLearner::on_request() {
  if (timer_ == nullptr || timer_->totals().steps == steps_seen_) return;
  // If several steps ended, it is not known which samples belong to which step.
  const bool one = timer_->totals().steps == steps_seen_ + 1;
  steps_seen_ = timer_->totals().steps;
  const double tokens = std::exchange(tokens_, 0);
  const double squares = std::exchange(squares_, 0);
  if (one) fit_.add(tokens, squares, work_seconds());
}

void CostLearner::add_work(double tokens, double squares) {
  tokens_ += tokens;
  squares_ += squares;
}

// Rank 0 fits and broadcasts the result. The fit becomes the cost only if it is certain enough.
void CostLearner::fit_on_rank_0() {
  struct {
    bool fitted = false;
    bool certain = false;
    FittedCost fit;
  } result;
  static_assert(std::is_trivially_copyable_v<decltype(result)>);
  if (communicator_ == nullptr || communicator_->rank() == 0) {
    if (const auto fitted = fit_.fit()) {
      const auto certain = [](double value, double error, double before) {
        return value > 0 ? error <= kCertain * value : before == 0;
      };
      result.fitted = true;
      result.certain = certain(fitted->cost.a, fitted->error_a, learnt_.cost.a) &&
                       certain(fitted->cost.b, fitted->error_b, learnt_.cost.b);
      result.fit = *fitted;
    }
  }
  if (communicator_ != nullptr)
    communicator_->broadcast({&result, sizeof(result), comm::DataType::u8}, 0, "the fitted cost")->wait();
  if (!result.fitted) return;
  learnt_.fit = result.fit;
  learnt_.fit_is_used = result.certain;
  if (!result.certain) return;
  learnt_.cost = learnt_.fit->cost;
  fixed_ = learnt_.fit->fixed;
  in_seconds_ = true;
}

// The rank's measured time / expected time; 0 if too few steps are measured.
double CostLearner::slowness() const {
  if (fit_.steps().size() < kMinSteps) return 0;
  std::vector<double> ratios;
  for (const MeasuredStep& step : fit_.steps()) {
    const double expected =
        learnt_.cost.a * step.tokens + learnt_.cost.b * step.squares + (in_seconds_ ? fixed_ : 0);
    ratios.push_back(step.seconds / expected);
  }
  return median(std::move(ratios));
}

void CostLearner::compare_ranks() {
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  double mine = slowness();
  std::vector<double> all(ranks);
  communicator_->all_gather({&mine, 1, comm::DataType::f64}, all.data(), "the ranks' speeds")->wait();
  // Rank 0 computes the speeds for all, because floating-point results may differ between processors.
  std::vector<double> speeds(ranks + 1, 0.0);
  if (communicator_->rank() == 0 && *std::min_element(all.begin(), all.end()) > 0) {
    const double fastest = *std::min_element(all.begin(), all.end());
    const double slowest = *std::max_element(all.begin(), all.end());
    speeds[0] = slowest > kSameSpeed * fastest ? 2 : 1;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      speeds[rank + 1] = fastest / std::min(all[rank], kMaxSlowness * fastest);
    }
  }
  communicator_->broadcast({speeds.data(), speeds.size(), comm::DataType::f64}, 0, "the ranks' speeds")
      ->wait();
  if (speeds[0] == 0) return;
  learnt_.speeds.assign(speeds.begin() + 1, speeds.end());
  if (speeds[0] == 1) learnt_.speeds.clear();
}

const CostCoefficients& CostLearner::decide() {
  if (what_ == CostModel::fixed) return learnt_;
  fit_on_rank_0();
  if (what_ == CostModel::learned_with_speeds && communicator_ != nullptr && communicator_->size() > 1)
    compare_ranks();
  ++learnt_.decisions;
  return learnt_;
}

}  // namespace lockstep::data
