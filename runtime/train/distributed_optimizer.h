// An optimizer whose state is spread over the ranks, so that Adam's two moments take 1/ranks of the memory on
// each rank (ZeRO-1 in the literature, ZeroRedundancyOptimizer in PyTorch). A reduce-scatter gives each rank
// its part of the gradients, each rank updates its part of the parameters, and an all-gather sends the
// parameters to all ranks. That is as many bytes as the all-reduce that it replaces.
//
//   lockstep::DistributedDataParallel ddp(model, world);
//   lockstep::DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(3e-4));
//   …
//     ddp.backward(loss_sum, tokens);
//     optimizer.clip_grad_norm(1.0);
//     optimizer.step();
//     optimizer.zero_grad();
//
// The result is that of the same optimizer in one process, up to rounding. It works with optimizers that
// treat each element separately: Adam, AdamW, SGD and RMSprop. For one of your own, specialise
// DistributedOptimizerState.
//
// Rules:
// - Construct it after DistributedDataParallel and before its first backward, without another communication
//   hook.
// - After a synchronised backward, .grad is valid only in this rank's part: clip with this class, or pass it to
//   lockstep::clip_grad_norm(), not the model's parameters.
// - Parameters become views of memory owned by this class.
// - join() is not supported, and no parameter may be added or unfrozen later.
// - All ranks call step(), clip_grad_norm() and save() together.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/train/clip_grad_norm.h"  // IWYU pragma: export
#include "runtime/train/fused_optimizer.h"

namespace lockstep {

namespace ddp {
class DeviceCollective;
}
namespace checkpoint {
class ShardedOptimizer;
}

namespace train {

class Partition;
class ShardingHook;
class Shards;
struct OptimizerShard;
struct StatePiece;

using ParameterGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// The parameters of all groups, with their names in the module. Throws UsageError for a parameter that the
/// module does not have.
std::vector<std::pair<std::string, torch::Tensor>> name_parameters(const torch::nn::Module& module,
                                                                   const ParameterGroups& groups);

/// The same groups with options and without parameters. Throws UsageError for a group without options if
/// `defaults` is null.
ParameterGroups without_parameters(const ParameterGroups& groups,
                                   const torch::optim::OptimizerOptions* defaults = nullptr);

}  // namespace train

/// The type of an optimizer's state of one parameter.
template <typename Optimizer>
struct DistributedOptimizerState;
template <>
struct DistributedOptimizerState<torch::optim::Adam> {
  using type = torch::optim::AdamParamState;
};
template <>
struct DistributedOptimizerState<torch::optim::AdamW> {
  using type = torch::optim::AdamWParamState;
};
template <>
struct DistributedOptimizerState<torch::optim::SGD> {
  using type = torch::optim::SGDParamState;
};
template <>
struct DistributedOptimizerState<torch::optim::RMSprop> {
  using type = torch::optim::RMSpropParamState;
};

template <>
struct DistributedOptimizerState<FusedAdam> : DistributedOptimizerState<torch::optim::Adam> {};
template <>
struct DistributedOptimizerState<FusedAdamW> : DistributedOptimizerState<torch::optim::AdamW> {};
template <>
struct DistributedOptimizerState<FusedSGD> : DistributedOptimizerState<torch::optim::SGD> {};

/// The part that does not depend on the optimizer's type. Construct a DistributedOptimizer instead.
class DistributedOptimizerBase {
 public:
  DistributedOptimizerBase(const DistributedOptimizerBase&) = delete;
  DistributedOptimizerBase& operator=(const DistributedOptimizerBase&) = delete;

  /// Updates the parameters on all ranks from the gradients of the last synchronised backward. Throws
  /// UsageError if there was none, and naming a parameter whose gradient DistributedDataParallel does not
  /// sum.
  void step();

  /// Sets gradients to zero, or to none.
  void zero_grad(bool set_to_none = false);

  /// lockstep::clip_grad_norm() over the parts of all ranks. The result is the same on all ranks. On a device the host
  /// waits for it.
  double clip_grad_norm(double max_norm, const ClipOptions& options = {});

  /// The groups, for their options: a learning rate that is set here holds from the next step on. All ranks set
  /// the same. Their parameters are this rank's parts.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() { return inner_->param_groups(); }

  /// Of the parameters.
  torch::Device device() const { return parameters_.front().second.device(); }

  /// The gradients of this rank's parts, to be read or scaled in place. Call it after a synchronised backward.
  std::vector<torch::Tensor> gradients();

  /// Writes the complete state, as one process would have it, into rank 0's archive, and nothing into those of the other
  /// ranks. All ranks call it together. No rank needs more memory than for the state on rank 0 and for one bucket.
  /// Checkpointer needs less: each rank writes its own part.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Continues from this state, which may come from another number of ranks. All ranks load the same archive. It also
  /// sets the options of the groups (learning rates) at once; options set afterwards stay. Throws Error and changes
  /// nothing if the state is another optimizer's, naming a parameter that this optimizer does not have or whose
  /// shape differs.
  void load(torch::serialize::InputArchive& archive);

  /// The size of this rank's state.
  std::size_t state_bytes() const;

  /// The optimizer of this rank's part.
  torch::optim::Optimizer& local_optimizer() { return *inner_; }

 protected:
  using Named = std::pair<std::string, torch::Tensor>;

  /// `inner` has the same groups with their options, but without parameters.
  DistributedOptimizerBase(DistributedDataParallelBase& ddp, const torch::nn::Module& module,
                           const train::ParameterGroups& groups,
                           std::unique_ptr<torch::optim::Optimizer> inner);
  virtual ~DistributedOptimizerBase();

  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state() const = 0;

 private:
  friend class checkpoint::ShardedOptimizer;

  /// This rank's part of the state; the pieces of all ranks are the whole state. It does not communicate, and copies
  /// nothing.
  train::OptimizerShard shard() const;
  /// Gives the optimizer this rank's pieces of a partition, in the order of its spans and in host memory. All ranks call it
  /// together; the sizes and the options must fit.
  void load_shard(train::OptimizerShard shard, const std::vector<torch::Tensor>& groups);

  void adopt_layout();
  void refuse_added() const;
  std::vector<train::StatePiece> pieces() const;
  void put(const std::vector<train::StatePiece>& pieces);
  train::OptimizerShard state_now() const;
  train::Partition equal_parts() const;
  std::vector<std::string> state_keys() const;

  comm::Communicator& communicator_;
  profile::StepTimer& timer_;
  const torch::nn::Module& module_;
  std::vector<Named> parameters_;
  std::vector<std::size_t> group_of_;            // by parameter
  std::map<const void*, std::size_t> index_of_;  // by TensorImpl
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::shared_ptr<train::ShardingHook> hook_;
  std::unique_ptr<ddp::DeviceCollective> on_device_;  // the all-gathers
  std::unique_ptr<train::Shards> shards_;
  std::uint64_t generation_ = 0;                    // of the hook's layout that shards_ uses
  std::unique_ptr<train::OptimizerShard> pending_;  // loaded before there was a layout
};

template <typename Optimizer>
class DistributedOptimizer : public DistributedOptimizerBase {
 public:
  /// Optimizes all parameters of the module that require a gradient.
  template <typename Module, typename Options>
  DistributedOptimizer(DistributedDataParallel<Module>& ddp, const Options& options)
      : DistributedOptimizer(ddp, train::ParameterGroups{{trained(ddp.module())}}, options) {}

  /// Optimizes groups of parameters. A group without options gets the defaults. Throws UsageError for a
  /// parameter that the module does not have. Throws it also for a trained parameter that is in no group,
  /// because its gradient would differ between ranks.
  template <typename Module, typename Options>
  DistributedOptimizer(DistributedDataParallel<Module>& ddp, const train::ParameterGroups& groups,
                       const Options& defaults)
      : DistributedOptimizerBase(
            ddp, ddp.module(), groups,
            std::make_unique<Optimizer>(train::without_parameters(groups, &defaults), defaults)) {}

  /// All groups have their options, as those from decay_groups(). Throws UsageError for one without.
  template <typename Module>
  DistributedOptimizer(DistributedDataParallel<Module>& ddp, const train::ParameterGroups& groups)
      : DistributedOptimizerBase(ddp, ddp.module(), groups,
                                 std::make_unique<Optimizer>(train::without_parameters(groups))) {}

  /// The same with its own type.
  Optimizer& local() { return static_cast<Optimizer&>(local_optimizer()); }

 private:
  std::unique_ptr<torch::optim::OptimizerParamState> make_state() const override {
    return std::make_unique<typename DistributedOptimizerState<Optimizer>::type>();
  }

  static std::vector<torch::Tensor> trained(const torch::nn::Module& module) {
    std::vector<torch::Tensor> parameters;
    for (const auto& parameter : parameters_of(module)) {
      if (parameter.requires_grad()) parameters.push_back(parameter);
    }
    return parameters;
  }
};

/// optimizer.clip_grad_norm(): see above.
inline GradientNorm clip_grad_norm(DistributedOptimizerBase& optimizer, double max_norm,
                                   const ClipOptions& options = {}) {
  return optimizer.clip_grad_norm(max_norm, options);
}

}  // namespace lockstep
