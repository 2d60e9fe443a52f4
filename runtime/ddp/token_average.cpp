#include "runtime/ddp/token_average.h"

#include <cmath>
#include <utility>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

double power_of_two_near(std::int64_t tokens) {
  return tokens <= 0 ? 1.0 : std::exp2(std::round(std::log2(static_cast<double>(tokens))));
}

}  // namespace

void TokenAverage::add(std::int64_t tokens) {
  if (tokens < 0) fail_usage("backward: the number of tokens must not be negative, but is {}", tokens);
  if (expected_ == 0) {
    std::int64_t first = tokens;
    communicator_.all_reduce({&first, 1, comm::DataType::i64}, "the first token count")->wait();
    expected_ = power_of_two_near(first);
  }
  if (step_is_over_ && reduced_->total > 0) expected_ = power_of_two_near(reduced_->total);
  step_is_over_ = false;
  pending_ += tokens;
}

TokenAverage::Count TokenAverage::close_step() {
  step_is_over_ = true;
  return {.mine = std::exchange(pending_, 0),
          .set_sum = [reduced = reduced_, expected = expected_](std::int64_t sum) {
            reduced->total = sum;
            reduced->gradient_factor = sum > 0 ? expected / static_cast<double>(sum) : 0.0;
          }};
}

}  // namespace lockstep::ddp
