// Reducer: the work after backward.
#include <algorithm>

#include "common/error.h"
#include "runtime/ddp/reducer.h"

namespace lockstep::ddp {
namespace {

// Of several arrivals of a parameter, keeps the last.
void keep_last_arrivals(std::vector<std::size_t>& arrived, std::size_t parameters) {
  std::vector<bool> seen(parameters);
  std::vector<std::size_t> last;
  for (auto it = arrived.rbegin(); it != arrived.rend(); ++it) {
    if (!seen[*it]) last.push_back(*it);
    seen[*it] = true;
  }
  arrived.assign(last.rbegin(), last.rend());
}

}  // namespace

void Reducer::finish_sync(bool skipping) {
  const torch::NoGradGuard no_grad;
  observer_.backward_ended();
  learn(skipping);
  lay_out_first();
  take_unready(skipping);
  if (!average_.agreed()) receive_messages();
  state_ = State::launching;
  launch_ready_buckets();
  const auto scope = timer_.phase(profile::Phase::comm_exposed);
  exchange_used_flags();
  receive_messages();
  wait_for_buckets();
  wait_for_futures();
  give_back_gradients();
  // Inside join, ranks that have ended keep their old parameters.
  if (counts_steps_) replica_check_.compare(step_);
  for (auto& parameter : parameters_) parameter.used = parameter.reached = false;
  graph_walked_ = false;
  unseen_forwards_ = 0;
  outdated_hooks_.reset();
  outdated_parameters_.clear();
  observer_.finish(summary_.durations, collective());
  rebuild_once();
  note_averaged_gradients();
  timer_.note_synchronised(this);
}

// Called for a parameter whose gradient is missing.
void Reducer::refuse_frozen(const Parameter& parameter) {
  if (parameter.tensor.requires_grad()) return;
  fail(
      "parameter '{}' was frozen after DistributedDataParallel was constructed, which still expects its gradient; after freezing, construct a new DistributedDataParallel on all ranks",
      parameter.name);
}

void Reducer::learn(bool skipping) {
  if (skipping) return;
  if (learning_) {
    keep_last_arrivals(arrivals_, parameters_.size());
    for (auto& parameter : parameters_)
      parameter.expected = options_.static_graph ? parameter.arrived : std::max(1U, parameter.arrived);
    learning_ = false;
    return;
  }
  if (!options_.static_graph) return;
  for (const auto& parameter : parameters_) {
    if (parameter.arrived == parameter.expected) continue;
    refuse_frozen(parameter);
    fail(
        "parameter '{}' got {} gradients in this backward and {} in the first one; with static_graph every step must use the same parameters equally often",
        parameter.name, parameter.arrived, parameter.expected);
  }
}

// Handles parameters that got no gradient in this backward, or fewer than expected.
void Reducer::take_unready(bool skipping) {
  const auto missing = [](const Parameter& parameter) { return !parameter.ready && parameter.arrived == 0; };
  const bool may_miss = skipping || options_.find_unused_parameters || options_.static_graph;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.ready) continue;
    if (missing(parameter)) {
      if (!may_miss) {
        refuse_frozen(parameter);
        const auto others = std::count_if(parameters_.begin(), parameters_.end(), missing) - 1;
        fail(
            "parameter '{}'{} did not get a gradient in this backward; use every parameter in forward, or set find_unused_parameters, or freeze untrained parameters before constructing DistributedDataParallel (docs/users/ddp.md)",
            parameter.name, others == 0 ? "" : fmt::format(" (and {} more)", others));
      }
      observer_.gradient_ready(i);
    }
    mark_ready(i);
  }
}

void Reducer::exchange_used_flags() {
  if (usage_settled_ || !(options_.find_unused_parameters || options_.static_graph)) return;
  used_ = std::make_shared<std::vector<std::uint8_t>>();
  for (const auto& parameter : parameters_) {
    const bool always = options_.static_graph && !learning_ && parameter.expected > 0;
    used_->push_back(parameter.used || always ? 1 : 0);
  }
  used_->push_back(learning_ ? 1 : 0);  // this rank has only skipped so far
  used_exchange_ =
      host_communicator_.all_reduce({used_->data(), used_->size(), comm::DataType::u8}, "used parameters",
                                    {.op = comm::ReduceOp::max, .keep = used_});
}

void Reducer::wait_for_buckets() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const auto work = std::move(buckets_[i].work);
    if (!work) continue;
    work->wait();
    if (!on_device()) observer_.reduced(i, work->times());  // there the host does not wait for the end
  }
}

// Goes stage by stage, so that the second stages of all buckets run together, in the same order on all ranks.
void Reducer::wait_for_futures() {
  bool first_stage = true;
  for (bool more = true; more; first_stage = false) {
    more = false;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      CommFuture& future = buckets_[i].future;
      if (future.works.empty() && !future.then) continue;
      for (const auto& work : future.works) work->wait();
      if (first_stage && !future.works.empty()) observer_.reduced(i, future.works.front()->times());
      const auto then = std::move(future.then);
      future = then ? then() : CommFuture{};
      more = more || !future.works.empty() || future.then;
      observer_.stage_ended(i);
    }
  }
  if (!comm_hook_) return;
  const int ranks = host_communicator_.size();  // hooks give the mean over ranks
  for (auto& bucket : buckets_) {
    if (device_factor_.known()) {
      device_factor_.multiply_after_hook(bucket.view->buffer(), ranks);
    } else if (const double scale = *factor_on_host() * ranks; scale != 1) {
      bucket.view->buffer().mul_(scale);
    }
  }
}

// A parameter that no rank used keeps its .grad as it was, or none, so that optimizers do not change it.
void Reducer::give_back_gradients() {
  if (used_exchange_) {
    used_exchange_->wait();
    used_exchange_.reset();
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].used_anywhere = (*used_)[i] != 0;
    usage_settled_ = options_.static_graph && used_->back() == 0;
  }
  for (auto& parameter : parameters_) {
    torch::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!parameter.used_anywhere) {
      if (parameter.had_none) gradient = torch::Tensor();
    } else if (!options_.gradient_as_bucket_view) {
      const auto& view = buckets_[parameter.bucket].flat->view(parameter.slot);
      if (gradient.defined()) {
        gradient.copy_(view);
      } else {
        gradient = view.clone();
      }
    }
  }
}

void Reducer::note_averaged_gradients() {
  // A step without counts leaves zeros. A device's count is not known yet.
  gradients_averaged_ =
      average_.mode() == Averaging::by_count && (on_device() || average_.count_of_last_step() > 0);
  if (!gradients_averaged_) return;
  for (auto& parameter : parameters_) {
    const torch::Tensor& gradient = parameter.tensor.grad();
    parameter.averaged = gradient.defined() ? gradient.data_ptr() : nullptr;
    parameter.averaged_version = gradient.defined() ? gradient._version() : 0;
  }
}

}  // namespace lockstep::ddp
