#include "examples/text_lm/progress.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/clock.h"
#include "common/units.h"

namespace lockstep::text_lm {
namespace {

constexpr double kSecondsBetweenLines = 4;
constexpr double kLowestRate = 0.1;

}  // namespace

std::int64_t tokens_of(const pack::Reader& pages) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) tokens += pages.tokens(i);
  return static_cast<std::int64_t>(tokens);
}

Progress::Progress(const Options& options, const pack::Reader& pages, World& world, torch::Device device)
    : options_(options),
      world_(world),
      begin_ns_(monotonic_ns()),
      epoch_tokens_(static_cast<double>(tokens_of(pages))),
      loss_here_(torch::zeros({}, torch::dtype(torch::kDouble).device(device))),
      seen_here_(torch::zeros(static_cast<std::int64_t>(pages.size()), torch::kInt64)) {
}

void Progress::add(const torch::Tensor& loss_sum, const data::Batch& batch) {
  loss_here_ += loss_sum.detach();
  loss_tokens_here_ += batch.loss_tokens;
  tokens_here_ += batch.token_count;
  seen_here_.index_add_(0, batch.sample_ids, torch::ones_like(batch.sample_ids));
}

void Progress::end_step() {
  ++now_.steps;
  collect();
  const double seconds = began_.seconds + seconds_between(begin_ns_, monotonic_ns());
  sums_ =
      torch::tensor({static_cast<double>(tokens_here_), world_.rank() == 0 ? seconds : 0}, torch::kDouble);
  summing_ = all_reduce_async(world_, sums_, ReduceOp::sum, "progress");
  tokens_here_ = 0;
  if (now_.seconds - line_.seconds >= kSecondsBetweenLines) print();
}

void Progress::collect() {
  if (!summing_) return;
  summing_->wait();
  summing_.reset();
  const auto* const sums = sums_.data_ptr<double>();
  now_.tokens += static_cast<std::int64_t>(sums[0]);
  now_.seconds = sums[1];
}

void Progress::read_loss() {
  const auto loss_here = loss_here_.item<double>();  // waits for a GPU
  check_loss(world_, loss_here, now_.steps);
  const auto sums = torch::tensor({loss_here, static_cast<double>(loss_tokens_here_)}, torch::kDouble);
  all_reduce(world_, sums, ReduceOp::sum, "loss");
  const auto* const sum = sums.data_ptr<double>();
  if (sum[1] > 0) loss_ = sum[0] / sum[1];
  loss_here_.zero_();
  loss_tokens_here_ = 0;
}

void Progress::print() {
  read_loss();
  const double left = now_.seconds * (1 / done() - 1);
  const auto tokens = static_cast<double>(now_.tokens - line_.tokens);
  say(options_, world_, "step {:>5}   loss {:.3f}   {} tokens/s   {}\n", now_.steps, loss_,
      format_count(tokens / (now_.seconds - line_.seconds)),
      left > 0 ? format_seconds(left) + " left" : "the last step");
  line_ = now_;
}

void Progress::settle() {
  collect();
  read_loss();
  all_reduce(world_, seen_here_, ReduceOp::sum, "samples seen");
  seen_ = seen_.defined() ? seen_ + seen_here_ : seen_here_.clone();
  seen_here_.zero_();
}

void Progress::add_to(Checkpointer& checkpointer) {
  checkpointer.add("steps", now_.steps);
  checkpointer.add("tokens", now_.tokens);
  checkpointer.add("seconds", now_.seconds);
  checkpointer.add("seen", seen_);
}

void Progress::resume() {
  began_ = line_ = now_;
}

double Progress::done() const {
  if (options_.steps) return static_cast<double>(now_.steps) / static_cast<double>(*options_.steps);
  if (options_.epochs)
    return static_cast<double>(now_.tokens) / (static_cast<double>(*options_.epochs) * epoch_tokens_);
  return now_.seconds / (options_.minutes * 60);
}

double Progress::learning_rate_factor() const {
  const double warm = std::min(1.0, static_cast<double>(now_.steps + 1) / (options_.warm_up + 1));
  const double wave = 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done())));
  return warm * (kLowestRate + (1 - kLowestRate) * wave);
}

nlohmann::json Progress::report(const data::Loader& loader) const {
  const double seconds = now_.seconds - began_.seconds;
  const auto tokens = static_cast<double>(now_.tokens - began_.tokens);
  const double rate = seconds > 0 ? tokens / seconds : 0;
  say(options_, world_, "trained {} steps on {} tokens in {}: {} tokens/s\n", now_.steps - began_.steps,
      format_count(tokens), format_seconds(seconds), format_count(rate));
  const auto advice = loader.advice();
  say(options_, world_, "waited {} for data after each epoch's first batch; {}\n",
      format_seconds(advice.waited_seconds), data::to_text(advice));
  return {{"ranks", world_.size()},
          {"device", loss_here_.device().str()},
          {"steps", now_.steps},
          {"tokens", now_.tokens},
          {"seconds", seconds},
          {"tokens_per_second", rate},
          {"data_wait_seconds", advice.waited_seconds},
          {"loss", loss_},
          {"resumed_at_step", began_.steps},
          {"samples", seen_.numel()},
          {"least_seen", seen_.min().item<std::int64_t>()},
          {"most_seen", seen_.max().item<std::int64_t>()}};
}

}  // namespace lockstep::text_lm
