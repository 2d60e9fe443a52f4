#include "runtime/train/distributed_optimizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/device_times.h"
#include "runtime/ddp/replicas.h"
#include "runtime/torch_archive.h"
#include "runtime/torch_version.h"
#include "runtime/train/optimizer_state.h"
#include "runtime/train/sharding.h"

namespace lockstep {

using train::Partition;
using train::Span;
using train::StatePiece;

namespace train {

std::vector<std::pair<std::string, torch::Tensor>> name_parameters(const torch::nn::Module& module,
                                                                   const ParameterGroups& groups) {
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<std::pair<std::string, torch::Tensor>> result;
  for (const auto& group : groups) {
    for (const auto& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      if (name == names.end()) {
        fail_usage("DistributedOptimizer: parameter {} of its groups does not belong to the module",
                   result.size());
      }
      result.emplace_back(name->second, parameter);
    }
  }
  return result;
}

ParameterGroups without_parameters(const ParameterGroups& groups,
                                   const torch::optim::OptimizerOptions* defaults) {
  ParameterGroups result;
  for (const auto& group : groups) {
    if (!group.has_options() && defaults == nullptr)
      fail_usage("DistributedOptimizer: group {} has no options: pass the optimizer's after the groups",
                 result.size());
    const torch::optim::OptimizerOptions& options = group.has_options() ? group.options() : *defaults;
    result.emplace_back(std::vector<torch::Tensor>{}, options.clone());
  }
  return result;
}

}  // namespace train

namespace {

// Tensors that are on the device are not copied. Ranks exchange state in host memory: it comes from a checkpoint or goes
// into one, and when the buckets change the device needs no space for the old state and the new one.
std::vector<StatePiece> moved_to(torch::Device device, std::vector<StatePiece> pieces) {
  for (StatePiece& piece : pieces) {
    for (auto& [key, value] : piece.state) {
      if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().to(device);
    }
  }
  return pieces;
}

}  // namespace

DistributedOptimizerBase::DistributedOptimizerBase(DistributedDataParallelBase& ddp,
                                                   const torch::nn::Module& module,
                                                   const train::ParameterGroups& groups,
                                                   std::unique_ptr<torch::optim::Optimizer> inner)
    : communicator_(ddp.world().communicator()),
      timer_(ddp.world().timer()),
      module_(module),
      parameters_(train::name_parameters(module, groups)),
      inner_(std::move(inner)),
      hook_(std::make_shared<train::ShardingHook>()) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    group_of_.insert(group_of_.end(), groups[group].params().size(), group);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!index_of_.emplace(parameters_[i].second.unsafeGetTensorImpl(), i).second) {
      fail_usage("DistributedOptimizer: parameter '{}' is in its groups twice", parameters_[i].first);
    }
    if (parameters_[i].second.is_complex()) {
      fail_usage(
          "DistributedOptimizer: parameter '{}' is complex, which is not supported; use one of LibTorch's optimizers",
          parameters_[i].first);
    }
  }
  for (const auto& [name, tensor] : ddp::named_parameters_of(module)) {
    if (!tensor.requires_grad() || index_of_.contains(tensor.unsafeGetTensorImpl())) continue;
    fail_usage(
        "DistributedOptimizer: parameter '{}' is trained but in none of its groups, so its gradient would differ between ranks; put it into a group, or freeze it before constructing DistributedDataParallel",
        name);
  }
  ddp.register_comm_hook(hook_);
}

DistributedOptimizerBase::~DistributedOptimizerBase() = default;

void DistributedOptimizerBase::step() {
  adopt_layout();
  shards_->take_gradients();
  inner_->step();
  const torch::Device device = parameters_.front().second.device();
  if (!device.is_cpu() && communicator_.size() > 1) {
    if (!on_device_)
      on_device_ = std::make_unique<ddp::DeviceCollective>(ddp::clocks_of(device), timer_,
                                                           record::Collective::all_gather);
    on_device_->begin();
  }
  const train::Shards::Moved moved = shards_->gather(hook_->communicator());
  if (on_device_) {
    on_device_->end(moved.bytes);
  } else {
    timer_.add_collective(record::Collective::all_gather, moved.bytes, moved.ns);
  }
  // LibTorch did not see that gather() wrote the parameters.
  for (const auto& [name, parameter] : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
}

void DistributedOptimizerBase::zero_grad(bool set_to_none) {
  for (auto& [name, parameter] : parameters_) {
    torch::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient = torch::Tensor();
    } else {
      gradient.detach().zero_();
    }
  }
}

std::vector<torch::Tensor> DistributedOptimizerBase::gradients() {
  adopt_layout();
  shards_->take_gradients();
  std::vector<torch::Tensor> gradients;
  for (const auto& slice : shards_->slices()) {
    if (slice.elements.grad().defined()) gradients.push_back(slice.elements.grad());
  }
  return gradients;
}

double DistributedOptimizerBase::clip_grad_norm(double max_norm, const ClipOptions& options) {
  const auto gradients = this->gradients();
  double part = train::norm_part(gradients, options.norm_type);
  const bool largest = std::isinf(options.norm_type);
  communicator_
      .all_reduce({&part, 1, comm::DataType::f64}, "the norm of gradients",
                  {.op = largest ? comm::ReduceOp::max : comm::ReduceOp::sum})
      ->wait();
  const double norm = train::norm_of_part(part, options.norm_type);
  train::scale(gradients, train::clip_factor(norm, max_norm, options));
  return norm;
}

// A parameter in no group would be lost: a rank has the summed gradients of its own part of a bucket only.
void DistributedOptimizerBase::refuse_added() const {
  for (const auto& bucket : hook_->layout()) {
    for (const auto& parameter : bucket) {
      if (index_of_.contains(parameter.unsafeGetTensorImpl())) continue;
      std::string name = "(not in the module)";
      for (const auto& entry : module_.named_parameters()) {
        if (entry.value().is_same(parameter)) name = "'" + entry.key() + "'";
      }
      fail_usage(
          "DistributedOptimizer: parameter {} was added or unfrozen after the optimizer was constructed, so it is not updated; construct a new DistributedDataParallel and DistributedOptimizer on all ranks",
          name);
    }
  }
}

// If the last backward used another layout of buckets, moves parameters to other memory and state to other
// ranks.
void DistributedOptimizerBase::adopt_layout() {
  if (hook_->generation() == 0)
    fail_usage("DistributedOptimizer: there was no synchronised backward yet; call step() after one");
  if (generation_ == hook_->generation()) return shards_->take_parameters_back();
  refuse_added();
  auto shards = std::make_unique<train::Shards>(*hook_, index_of_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (shards->has(i)) continue;
    fail_usage(
        "DistributedOptimizer: the gradient of parameter '{}' is not in a bucket, because the parameter is frozen; leave it out of the groups",
        parameters_[i].first);
  }
  const train::OptimizerShard before = state_now();
  const auto after =
      train::redistribute(communicator_, before.partition, before.state, shards->partition(), state_keys());
  shards_ = std::move(shards);
  generation_ = hook_->generation();

  for (auto& group : inner_->param_groups()) group.params().clear();
  for (const auto& slice : shards_->slices()) {
    inner_->param_groups()[group_of_[slice.span.parameter]].params().push_back(slice.elements);
  }
  put(after);
  pending_.reset();
}

// This rank's state, as the optimizer has it.
std::vector<StatePiece> DistributedOptimizerBase::pieces() const {
  std::vector<StatePiece> pieces;
  if (!shards_) return pieces;
  for (const auto& slice : shards_->slices()) {
    const auto found = inner_->state().find(torch_compat::optimizer_key(slice.elements));
    if (found == inner_->state().end()) continue;
    pieces.push_back({slice.span, train::read_state(*found->second)});
  }
  return pieces;
}

// Before the first backward nobody knows who will update which elements: each rank keeps an equal part.
train::OptimizerShard DistributedOptimizerBase::shard() const {
  if (pending_) return *pending_;
  if (shards_) return {shards_->partition(), pieces()};
  return {equal_parts(), {}};
}

Partition DistributedOptimizerBase::equal_parts() const {
  std::vector<std::int64_t> elements;
  for (const auto& [name, parameter] : parameters_) elements.push_back(parameter.numel());
  return Partition::of_parameters(elements, communicator_.size());
}

std::vector<std::string> DistributedOptimizerBase::state_keys() const {
  return train::state_keys(*make_state());
}

void DistributedOptimizerBase::load_shard(train::OptimizerShard shard,
                                          const std::vector<torch::Tensor>& groups) {
  for (std::size_t group = 0; group < groups.size(); ++group)
    train::write_options(groups[group], inner_->param_groups()[group].options());
  if (shards_ || !shard.partition.is_plain()) {
    const Partition to = shards_ ? shards_->partition() : equal_parts();
    shard.state = train::redistribute(communicator_, shard.partition, shard.state, to, state_keys());
    shard.partition = to;
  }
  if (shards_) return put(shard.state);
  pending_ = std::make_unique<train::OptimizerShard>(std::move(shard));
}

void DistributedOptimizerBase::put(const std::vector<StatePiece>& pieces) {
  inner_->state().clear();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].state.empty()) continue;
    auto state = make_state();
    const torch::Tensor& elements = shards_->slices()[i].elements;
    train::write_state(moved_to(elements.device(), {pieces[i]}).front().state, *state);
    inner_->state()[torch_compat::optimizer_key(elements)] = std::move(state);
  }
}

// In host memory.
train::OptimizerShard DistributedOptimizerBase::state_now() const {
  train::OptimizerShard now = shard();
  now.state = moved_to(torch::kCPU, std::move(now.state));
  return now;
}

void DistributedOptimizerBase::save(torch::serialize::OutputArchive& archive) const {
  std::vector<StatePiece> whole;
  // Before the first backward no rank has any.
  if (pending_ || shards_) {
    const train::OptimizerShard mine = state_now();
    for (const train::BucketLayout& bucket : mine.partition.buckets()) {
      const Partition spread({bucket}, communicator_.size());
      auto part = train::redistribute(communicator_, spread, mine.state, spread.on(1), state_keys());
      std::move(part.begin(), part.end(), std::back_inserter(whole));
    }
  }
  if (communicator_.rank() != 0) return;
  c10::List<std::string> names;
  for (const StatePiece& piece : whole) {
    if (piece.state.empty()) continue;
    const auto& [name, parameter] = parameters_[piece.span.parameter];
    torch::serialize::OutputArchive state(archive.compilation_unit());
    for (const auto& [key, value] : train::in_shape_of(parameter, piece)) state.write(key, value);
    archive.write(std::to_string(names.size()), state);
    names.push_back(name);
  }
  c10::List<torch::Tensor> groups;
  for (const auto& group : inner_->param_groups()) groups.push_back(train::read_options(group.options()));
  archive.write("parameters", names);
  archive.write("groups", groups);
}

void DistributedOptimizerBase::load(torch::serialize::InputArchive& archive) {
  const auto options = value_in(archive, "groups").toTensorVector();
  auto& groups = inner_->param_groups();
  if (options.size() != groups.size()) {
    fail("the checkpoint has {} groups of parameters, but this optimizer has {}", options.size(),
         groups.size());
  }
  const auto names = value_in(archive, "parameters").toList();
  std::map<std::size_t, ParameterState> saved;  // by parameter
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = names.get(i).toStringRef();
    const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                    [&](const Named& parameter) { return parameter.first == name; });
    if (found == parameters_.end())
      fail("the checkpoint contains parameter '{}', which this optimizer does not have", name);
    torch::serialize::InputArchive state;
    archive.read(std::to_string(i), state);
    auto& entries = saved[static_cast<std::size_t>(found - parameters_.begin())];
    for (const std::string& key : state.keys()) {
      const c10::IValue value = value_in(state, key.c_str());
      entries[key] = value;
      if (value.isTensor() && value.toTensor().sizes() != found->second.sizes())
        fail("the checkpoint's {} of parameter '{}' has another shape than the parameter", key, name);
    }
  }
  try {
    for (std::size_t group = 0; group < groups.size(); ++group)
      train::write_options(options[group], *groups[group].options().clone());
  } catch (const c10::Error&) {
    fail("the checkpoint's optimizer options differ: they are those of another type of optimizer");
  }
  train::OptimizerShard shard{equal_parts(), {}};
  for (const Span& span : shard.partition.spans_of(communicator_.rank())) {
    const auto found = saved.find(span.parameter);
    shard.state.push_back(found == saved.end()
                              ? StatePiece{span, {}}
                              : train::cut(found->second, parameters_[span.parameter].second, span));
  }
  load_shard(std::move(shard), options);
}

std::size_t DistributedOptimizerBase::state_bytes() const {
  std::size_t bytes = 0;
  for (const StatePiece& piece : pieces()) {
    for (const auto& [key, value] : piece.state) {
      if (value.isTensor()) bytes += value.toTensor().nbytes();
    }
  }
  return bytes;
}

}  // namespace lockstep
