#include "runtime/ddp/token_average.h"

#include <cmath>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

double power_of_two_near(std::int64_t tokens) {
  return tokens <= 0 ? 1.0 : std::exp2(std::round(std::log2(static_cast<double>(tokens))));
}

}  // namespace

void TokenAverage::add(std::int64_t tokens) {
  if (tokens < 0) fail_usage("backward was given {} tokens; the number must be 0 or more", tokens);
  if (expected_ == 0) {
    std::int64_t first = tokens;
    communicator_.all_reduce({&first, 1, comm::DataType::i64}, "the first token count")->wait();
    expected_ = power_of_two_near(first);
  }
  if (reduced_ && total_ > 0) expected_ = power_of_two_near(total_);
  reduced_ = false;
  pending_ += tokens;
}

comm::WorkHandle TokenAverage::reduce_counts() {
  total_ = pending_;
  pending_ = 0;
  reduced_ = true;
  const auto set_factor = [this] {
    gradient_factor_ = total_ > 0 ? expected_ / static_cast<double>(total_) : 0.0;
  };
  return communicator_.all_reduce({&total_, 1, comm::DataType::i64}, "token counts", {.then = set_factor});
}

}  // namespace lockstep::ddp
