// An optimizer whose state is spread over the ranks, so that Adam's two moments take 1/ranks of the memory on
// each (what the literature calls ZeRO-1, and PyTorch ZeroRedundancyOptimizer). Gradients come by
// reduce-scatter, each rank updates its part of the parameters, and the parameters go round by all-gather: as
// many bytes as the all-reduce that this replaces.
//
//   lockstep::DistributedDataParallel ddp(model, world);
//   lockstep::DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(3e-4));
//   …
//     ddp.backward(loss_sum, tokens);
//     optimizer.clip_grad_norm(1.0);
//     optimizer.step();
//     optimizer.zero_grad();
//
// The result is that of the same optimizer on one process, up to rounding. It works with optimizers that
// treat each element by itself: Adam, AdamW, SGD and RMSprop; for one of your own specialise
// DistributedOptimizerState.
//
// Rules: made after DistributedDataParallel and before its first backward, with no other communication hook.
// After a synchronised backward .grad is of use on this rank only where it has its part: clip with this
// class, not with clip_grad_norm(). Parameters become views of memory owned here. There are no sparse
// gradients, and no join(), and no parameter may be added or unfrozen later. All ranks call step(),
// clip_grad_norm(), state_dict() and save() together.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/train/clip_grad_norm.h"
#include "runtime/train/optimizer_state.h"

namespace lockstep {

namespace train {

class ShardingHook;
class Shards;

using ParameterGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// The groups' parameters one after the other, with their names in the module. Throws UsageError for one that
/// is not there.
std::vector<std::pair<std::string, torch::Tensor>> name_parameters(const torch::nn::Module& module,
                                                                   const ParameterGroups& groups);

}  // namespace train

/// The type in which an optimizer keeps what it knows of a parameter.
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

/// The part that does not depend on the optimizer's type; made through DistributedOptimizer.
class DistributedOptimizerBase {
 public:
  DistributedOptimizerBase(const DistributedOptimizerBase&) = delete;
  DistributedOptimizerBase& operator=(const DistributedOptimizerBase&) = delete;

  /// Updates the parameters, on all ranks, from the gradients of the last synchronised backward. Throws
  /// UsageError where there was none, or naming a parameter that DistributedDataParallel does not sum.
  void step();

  /// Gradients become zero, or none.
  void zero_grad(bool set_to_none = false);

  /// lockstep::clip_grad_norm() over all ranks' parts; the same on all ranks.
  double clip_grad_norm(double max_norm, const ClipOptions& options = {});

  /// The state of all parameters, whole, on `rank`; empty on the others. Nobody holds more than that rank's
  /// result and one rank's part at a time.
  OptimizerState state_dict(int rank = 0);

  /// Goes on from there, also when it comes from another number of ranks; all ranks load the same. The
  /// options of the groups (learning rates) are set, too, at once: what is set afterwards stays. Throws
  /// Error, and changes nothing, for another optimizer's state, and naming a parameter that this optimizer
  /// does not have, or whose shape differs.
  void load_state_dict(OptimizerState state);

  /// state_dict() into a file, which is there whole or not at all: rank 0 writes it. Throws Error naming it.
  void save(const std::filesystem::path& path);
  /// Every rank reads the file. Throws Error naming it.
  void load(const std::filesystem::path& path);

  /// Of this rank's state.
  std::size_t state_bytes() const;

 protected:
  using Named = std::pair<std::string, torch::Tensor>;

  /// `inner` has as many groups, with their options and without parameters.
  DistributedOptimizerBase(DistributedDataParallelBase& ddp, const torch::nn::Module& module,
                           const train::ParameterGroups& groups,
                           std::unique_ptr<torch::optim::Optimizer> inner);
  virtual ~DistributedOptimizerBase();

  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state() const = 0;

  torch::optim::Optimizer& inner() { return *inner_; }

 private:
  void adopt_layout();
  void refuse_added() const;
  std::vector<train::Piece> pieces() const;
  void put(const std::vector<train::Piece>& pieces);
  void put(const OptimizerState& state);
  std::vector<torch::Tensor> my_gradients();

  comm::Communicator& communicator_;
  const torch::nn::Module& module_;
  std::vector<Named> parameters_;
  std::vector<std::size_t> group_of_;            // by parameter
  std::map<const void*, std::size_t> index_of_;  // by TensorImpl
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::shared_ptr<train::ShardingHook> hook_;
  std::unique_ptr<train::Shards> shards_;
  std::uint64_t generation_ = 0;           // of the hook's layout that shards_ has
  std::optional<OptimizerState> waiting_;  // loaded before there was a layout
};

template <typename Optimizer>
class DistributedOptimizer : public DistributedOptimizerBase {
 public:
  /// All parameters of the module that require a gradient.
  template <typename Module, typename Options>
  DistributedOptimizer(DistributedDataParallel<Module>& ddp, const Options& options)
      : DistributedOptimizer(ddp, train::ParameterGroups{{trained(ddp.module())}}, options) {}

  /// Groups of parameters with options of their own (a group without has the defaults). Throws UsageError for
  /// a parameter that is not the module's, and for one of the module's that is trained and in no group: ranks
  /// would have different gradients for it.
  template <typename Module, typename Options>
  DistributedOptimizer(DistributedDataParallel<Module>& ddp, const train::ParameterGroups& groups,
                       const Options& defaults)
      : DistributedOptimizerBase(ddp, ddp.module(), groups,
                                 std::make_unique<Optimizer>(empty(groups, defaults), defaults)) {}

  /// The optimizer of this rank's part, for its groups' options and for learning rate schedulers.
  Optimizer& local() { return static_cast<Optimizer&>(inner()); }

 private:
  std::unique_ptr<torch::optim::OptimizerParamState> make_state() const override {
    return std::make_unique<typename DistributedOptimizerState<Optimizer>::type>();
  }

  static std::vector<torch::Tensor> trained(const torch::nn::Module& module) {
    std::vector<torch::Tensor> parameters;
    std::unordered_set<const void*> seen;  // a tensor under two names is there twice
    for (const auto& parameter : module.parameters()) {
      if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
        parameters.push_back(parameter);
    }
    return parameters;
  }

  // The same groups without their parameters.
  template <typename Options>
  static train::ParameterGroups empty(const train::ParameterGroups& groups, const Options& defaults) {
    train::ParameterGroups result;
    for (const auto& group : groups) {
      const torch::optim::OptimizerOptions& options = group.has_options() ? group.options() : defaults;
      result.emplace_back(std::vector<torch::Tensor>{}, options.clone());
    }
    return result;
  }
};

}  // namespace lockstep
