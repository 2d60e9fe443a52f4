#include "runtime/ddp/gradient_average.h"

#include <cmath>
#include <utility>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

// Until the first sum is known: between the samples and the tokens of usual steps, so that half types neither overflow nor
// lose small gradients.
constexpr double kFirstExpected = 1024;

double power_of_two_near(std::int64_t count) {
  return std::exp2(std::round(std::log2(static_cast<double>(count))));
}

}  // namespace

GradientAverage::GradientAverage(int ranks) : rank_factor_(std::make_shared<double>(1.0 / ranks)) {
}

void GradientAverage::begin(Averaging mode, std::int64_t count) {
  if (count < 0) fail_usage("backward: the count must not be negative, but is {}", count);
  if (mode == Averaging::over_ranks && mode_ == Averaging::by_count) {
    fail_usage(
        "loss.backward() averages over ranks, but this model was averaged by count before; call ddp.backward(loss_sum, count) for every loss, or construct a new DistributedDataParallel on all ranks (docs/users/ddp.md)");
  }
  if (mode == Averaging::by_count && mode_ == Averaging::over_ranks) {
    fail_usage(
        "ddp.backward(loss_sum, count) averages by count, but this model was averaged over ranks before; call loss.backward() for every loss, or construct a new DistributedDataParallel on all ranks (docs/users/ddp.md)");
  }
  if (mode_ == Averaging::undecided) mode_ = mode;
  if (mode_ != Averaging::by_count || (mode == Averaging::undecided && !agreed_)) return;
  if (!agreed_) {
    expected_ = kFirstExpected;
  } else if (step_begins_ && reduced_->count > 0) {
    expected_ = power_of_two_near(reduced_->count);
  }
  step_begins_ = false;
  pending_ += count;
}

GradientAverage::Step GradientAverage::close_step() {
  step_begins_ = true;
  return {
      .mine = {.mode = mode_, .count = std::exchange(pending_, 0)},
      .decide = [reduced = reduced_, expected = agreed_ ? expected_ : kFirstExpected](const JobAverage& all) {
        reduced->count = all.count;
        reduced->factor = all.count > 0 ? expected / static_cast<double>(all.count) : 0;
      }};
}

void GradientAverage::adopt(const JobAverage& all) {
  if (all.over_ranks >= 0 && all.by_count >= 0) {
    fail_usage(
        "rank {} called loss.backward(), which averages over ranks, but rank {} called ddp.backward(loss_sum, count), which averages by count; use the same call on all ranks (docs/users/ddp.md)",
        all.over_ranks, all.by_count);
  }
  if (agreed_) return;
  if (all.over_ranks >= 0) mode_ = Averaging::over_ranks;
  if (all.by_count >= 0) {
    mode_ = Averaging::by_count;
    expected_ = kFirstExpected;  // of a rank that skipped, too
  }
  agreed_ = all.over_ranks >= 0 || all.count > 0;
}

}  // namespace lockstep::ddp
