#include "runtime/ddp/reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>

#include "common/clock.h"
#include "common/error.h"

namespace lockstep::ddp {

Reducer::Reducer(comm::Communicator& communicator, profile::StepTimer& timer,
                 const std::vector<NamedTensor>& parameters, const DistributedDataParallelOptions& options,
                 const bool& sync)
    : communicator_(communicator),
      timer_(timer),
      options_(options),
      sync_(sync),
      tokens_(communicator),
      factor_(options.average == Average::tokens
                  ? tokens_.gradient_factor()
                  : std::make_shared<const double>(1.0 / communicator.size())) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    static_cast<void>(data_type_of(tensor.scalar_type(), fmt::format("parameter '{}'", name)));
    parameters_.push_back({.name = name, .tensor = tensor});
  }
  if (parameters_.empty()) fail_usage("the model has no parameter that requires a gradient");

  // Gradients arrive roughly from the last layer to the first; once they have, rebuild_once() knows better.
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  build(assign(order));
  for (std::size_t i = 0; i < parameters_.size(); ++i) add_hook(i);
}

Reducer::~Reducer() {
  for (auto& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  }
}

void Reducer::add_hook(std::size_t index) {
  using torch::autograd::variable_list;
  Parameter& parameter = parameters_[index];
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
  parameter.hook =
      parameter.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, index](const variable_list& outputs, const variable_list& /*inputs*/) {
            on_gradient(index);
            return outputs;
          }));
}

double Reducer::loss_factor() const {
  return options_.average == Average::tokens ? tokens_.loss_factor() : 1.0;
}

void Reducer::begin(std::int64_t tokens) {
  if (state_ != State::idle) {
    fail("the backward before this one did not end; gradients of this step are lost");
  }
  if (options_.average == Average::tokens) tokens_.add(tokens);
  if (sync_) {
    begin_sync();
  } else {
    state_ = State::accumulating;
  }
}

void Reducer::begin_outside() {
  if (options_.average == Average::tokens) {
    fail_usage(
        "loss.backward() was called directly; averaging by tokens needs their number: use "
        "ddp.backward(loss_sum, loss_tokens), or Average::ranks");
  }
  if (!sync_) return;
  begin_sync();
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish(); });
}

void Reducer::begin_sync() {
  state_ = State::syncing;
  next_bucket_ = 0;
  arrived_.clear();
  trace_ = {};
  for (auto& parameter : parameters_) parameter.ready = parameter.had_none = false;
  for (auto& bucket : buckets_) bucket.pending = bucket.parameters.size();
  if (options_.average == Average::tokens) counts_ = tokens_.reduce_counts();
}

void Reducer::on_gradient(std::size_t index) {
  if (torch::GradMode::is_enabled()) {
    fail_usage(
        "backward was called with create_graph, which replaces the gradients that buckets hold; compute "
        "gradients of gradients with torch::autograd::grad");
  }
  if (state_ == State::idle) begin_outside();
  parameters_[index].used = true;
  if (state_ != State::syncing) return;
  if (parameters_[index].ready) {
    fail("parameter '{}' got its gradient twice in one backward; gradients that come in parts need no_sync()",
         parameters_[index].name);
  }
  arrived_.push_back(index);
  mark_ready(index);
  launch_ready_buckets();
}

// Makes the bucket hold the gradient, and .grad the view on it.
void Reducer::mark_ready(std::size_t index) {
  Parameter& parameter = parameters_[index];
  Bucket& bucket = buckets_[parameter.bucket];
  torch::Tensor view = bucket.flat.view(parameter.slot);
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) {
    parameter.had_none = true;
    view.zero_();
    gradient = view;
  } else if (!gradient.is_same(view)) {
    if (gradient.is_sparse()) {
      fail_usage(
          "parameter '{}' has a sparse gradient, which cannot travel in a bucket; make its layer dense",
          parameter.name);
    }
    view.copy_(gradient);
    gradient = view;
  }
  parameter.ready = true;
  --bucket.pending;
}

void Reducer::launch_ready_buckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_) {
    Bucket& bucket = buckets_[next_bucket_];
    // When backward throws, this object may go before the operation ends, which waits for the other ranks.
    const auto keep = [factor = factor_, memory = bucket.flat.memory()] {};
    bucket.work = communicator_.all_reduce(bucket.flat.buffer(), bucket.flat.label(),
                                           {.scale = factor_.get(), .then = keep});
    trace_.launches.push_back({.bucket = next_bucket_, .asked_ns = monotonic_ns()});
  }
}

void Reducer::finish() {
  if (state_ == State::syncing) finish_sync(false);
  state_ = State::idle;
}

void Reducer::skip() {
  begin(0);
  if (state_ == State::syncing) finish_sync(true);
  state_ = State::idle;
}

// Parameters whose gradient did not arrive in this backward.
void Reducer::take_unready(bool skipping) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].ready) continue;
    if (!skipping && !options_.find_unused_parameters) {
      const auto missing =
          std::count_if(parameters_.begin(), parameters_.end(), [](const auto& p) { return !p.ready; });
      fail(
          "parameter '{}'{} did not get a gradient in this backward; forward must use every parameter, or "
          "set find_unused_parameters, or freeze what is not trained",
          parameters_[i].name, missing == 1 ? "" : fmt::format(" (and {} more)", missing - 1));
    }
    mark_ready(i);
  }
}

void Reducer::finish_sync(bool skipping) {
  trace_.backward_ended_ns = monotonic_ns();
  take_unready(skipping);
  launch_ready_buckets();
  const auto scope = timer_.phase(profile::Phase::comm_exposed);
  if (options_.find_unused_parameters) find_globally_unused();
  if (counts_) counts_->wait();
  for (auto& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
  }
  for (auto& parameter : parameters_) parameter.used = false;
  rebuild_once();
  trace_.finished_ns = monotonic_ns();
}

// A parameter that no rank used keeps no gradient, so that optimizers leave it alone.
void Reducer::find_globally_unused() {
  std::vector<std::uint8_t> used;
  for (const auto& parameter : parameters_) used.push_back(parameter.used ? 1 : 0);
  communicator_
      .all_reduce({used.data(), used.size(), comm::DataType::u8}, "used parameters",
                  {.op = comm::ReduceOp::max})
      ->wait();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (used[i] == 0 && parameters_[i].had_none) parameters_[i].tensor.mutable_grad() = torch::Tensor();
  }
}

Assignment Reducer::assign(const std::vector<std::size_t>& order) const {
  std::vector<ParameterSize> sizes;
  for (const auto& parameter : parameters_) {
    sizes.push_back({.bytes = bytes_in_bucket(parameter.tensor),
                     .group = static_cast<std::uint32_t>(parameter.tensor.scalar_type())});
  }
  const std::size_t limits[] = {options_.first_bucket_bytes, options_.bucket_bytes};
  return assign_buckets(sizes, order, limits);
}

// Lays buckets out; gradients that lie in earlier ones move.
void Reducer::build(const Assignment& assignment) {
  std::vector<Bucket> buckets;
  for (const auto& members : assignment) {
    std::vector<torch::Tensor> tensors;
    for (const std::size_t i : members) tensors.push_back(parameters_[i].tensor);
    FlatBucket flat(communicator_, fmt::format("bucket {}", buckets.size()), tensors);
    for (std::size_t slot = 0; slot < members.size(); ++slot) {
      Parameter& parameter = parameters_[members[slot]];
      torch::Tensor& gradient = parameter.tensor.mutable_grad();
      if (gradient.defined() && !buckets_.empty()) {
        torch::Tensor view = flat.view(slot);
        view.copy_(gradient);
        gradient = view;
      }
      parameter.bucket = buckets.size();
      parameter.slot = slot;
    }
    buckets.push_back({.flat = std::move(flat), .parameters = members, .work = nullptr});
  }
  buckets_ = std::move(buckets);
  assignment_ = assignment;
}

// The order in which rank 0's gradients arrived becomes everyone's. A step in which they did not all arrive
// there (it skipped) leaves it to the next one.
void Reducer::rebuild_once() {
  if (rebuilt_ || !options_.rebuild_buckets || options_.find_unused_parameters) return;
  std::vector<std::int64_t> order(parameters_.size(), -1);
  if (arrived_.size() == parameters_.size()) std::copy(arrived_.begin(), arrived_.end(), order.begin());
  communicator_.broadcast({order.data(), order.size(), comm::DataType::i64}, 0, "the order of gradients")
      ->wait();
  if (order[0] < 0) return;
  rebuilt_ = true;
  const auto assignment = assign({order.begin(), order.end()});
  if (assignment != assignment_) build(assignment);
}

std::vector<std::vector<std::string>> Reducer::layout() const {
  std::vector<std::vector<std::string>> names;
  for (const auto& bucket : buckets_) {
    auto& list = names.emplace_back();
    for (const std::size_t i : bucket.parameters) list.push_back(parameters_[i].name);
  }
  return names;
}

}  // namespace lockstep::ddp
