#include "examples/text_lm/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "common/clock.h"
#include "common/error.h"
#include "common/units.h"

namespace lockstep::text_lm {
namespace {

constexpr double kSecondsBetweenLines = 4;
constexpr double kLowestRate = 0.1;

std::uint64_t data_wait_ns(World& world) {
  return world.timer().totals().phase_ns[static_cast<std::size_t>(profile::Phase::data_wait)];
}

}  // namespace

Progress::Progress(const Options& options, std::uint64_t epoch_tokens, World& world)
    : options_(options), world_(world), begin_ns_(monotonic_ns()) {
  if (options.epochs)
    total_tokens_ = static_cast<double>(*options.epochs) * static_cast<double>(epoch_tokens);
  world.timer().begin_step();
}

Progress::~Progress() = default;

void Progress::add(double loss_sum, const data::Batch& batch) {
  mine_.loss += loss_sum;
  mine_.loss_tokens += static_cast<double>(batch.loss_tokens);
  mine_.tokens += static_cast<double>(batch.token_count);
  samples_ += batch.sample_ids.size(0);
  padding_ += batch.padding;
}

void Progress::end_step() {
  world_.timer().end_step({.tokens = static_cast<std::uint64_t>(mine_.tokens),
                           .samples = static_cast<std::uint64_t>(samples_),
                           .padding = static_cast<std::uint64_t>(padding_)});
  if (steps_ == before_.steps) first_wait_ns_ = data_wait_ns(world_);
  ++steps_;
  collect();
  if (world_.rank() == 0) mine_.seconds = elapsed();
  summed_ = mine_;
  constexpr std::size_t kNumbers = sizeof(Numbers) / sizeof(double);
  sum_ = world_.communicator().all_reduce({&summed_.loss, kNumbers, comm::DataType::f64}, "progress");
  mine_ = {};
  samples_ = padding_ = 0;
  if (seconds_ - line_at_ >= kSecondsBetweenLines) print();
}

void Progress::collect() {
  if (!sum_) return;
  sum_->wait();
  sum_.reset();
  shown_.loss += summed_.loss;
  shown_.loss_tokens += summed_.loss_tokens;
  shown_.tokens += summed_.tokens;
  tokens_ += summed_.tokens;
  seconds_ = summed_.seconds;
}

void Progress::print() {
  if (world_.rank() == 0 && !options_.json) {
    const double left = seconds_ * (1 / done() - 1);
    fmt::print("step {:>5}   loss {:.3f}   {} tokens/s   {}\n", steps_ - 1, shown_.loss / shown_.loss_tokens,
               format_count(shown_.tokens / (seconds_ - line_at_)),
               left > 0 ? format_seconds(left) + " left" : "the last step");
    std::fflush(stdout);
  }
  last_shown_ = shown_;
  shown_ = {};
  line_at_ = seconds_;
}

Summary Progress::finish() {
  collect();
  const auto& recent = shown_.loss_tokens > 0 ? shown_ : last_shown_;
  return {.steps = steps_,
          .tokens = static_cast<std::int64_t>(tokens_),
          .tokens_here = static_cast<std::int64_t>(tokens_ - before_.tokens),
          .seconds = seconds_ - before_.seconds,
          .data_wait = static_cast<double>(data_wait_ns(world_) - first_wait_ns_) * 1e-9,
          .loss = recent.loss / recent.loss_tokens};
}

Progress::State Progress::state() {
  collect();
  return {.steps = steps_, .tokens = tokens_, .seconds = seconds_};
}

void Progress::resume(const State& state) {
  before_ = state;
  steps_ = state.steps;
  tokens_ = state.tokens;
  seconds_ = line_at_ = state.seconds;
}

bool Progress::over_after(std::uint64_t epoch) const {
  return over() || (options_.epochs && static_cast<std::int64_t>(epoch) + 1 >= *options_.epochs);
}

double Progress::done() const {
  if (options_.steps) return static_cast<double>(steps_) / static_cast<double>(*options_.steps);
  if (options_.epochs) return tokens_ / total_tokens_;
  return seconds_ / (options_.minutes * 60);
}

double Progress::elapsed() const {
  return before_.seconds + seconds_between(begin_ns_, monotonic_ns());
}

double Progress::learning_rate_factor() const {
  const double warm = std::min(1.0, static_cast<double>(steps_ + 1) / (options_.warm_up + 1));
  const double wave = 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done())));
  return warm * (kLowestRate + (1 - kLowestRate) * wave);
}

}  // namespace lockstep::text_lm
