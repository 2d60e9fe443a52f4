#include <algorithm>
#include <map>
#include <set>

#include "common/error.h"
#include "runtime/torch_version.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/checkpoint/optimizer_section.h"

namespace lockstep::checkpoint {
namespace {

template <typename Type>
bool is(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Type*>(&optimizer) != nullptr;
}

/// "AdamW" also for FusedAdamW, whose state is the same. Throws UsageError for other types.
std::string optimizer_type(const torch::optim::Optimizer& optimizer) {
  if (is<torch::optim::AdamW>(optimizer)) return "AdamW";
  if (is<torch::optim::Adam>(optimizer)) return "Adam";
  if (is<torch::optim::SGD>(optimizer)) return "SGD";
  if (is<torch::optim::RMSprop>(optimizer)) return "RMSprop";
  if (is<torch::optim::Adagrad>(optimizer)) return "Adagrad";
  fail_usage(
      "a checkpoint cannot hold this optimizer: only Adam, AdamW, SGD, RMSprop and Adagrad; wrap another one in an object with save() and load()");
}

/// The empty state of one parameter of such an optimizer.
std::unique_ptr<torch::optim::OptimizerParamState> make_parameter_state(
    const torch::optim::Optimizer& optimizer) {
  if (is<torch::optim::AdamW>(optimizer)) return std::make_unique<torch::optim::AdamWParamState>();
  if (is<torch::optim::Adam>(optimizer)) return std::make_unique<torch::optim::AdamParamState>();
  if (is<torch::optim::SGD>(optimizer)) return std::make_unique<torch::optim::SGDParamState>();
  if (is<torch::optim::RMSprop>(optimizer)) return std::make_unique<torch::optim::RMSpropParamState>();
  return std::make_unique<torch::optim::AdagradParamState>();
}

/// An optimizer whose state is the same on all ranks.
class ReplicatedOptimizer : public Item {
 public:
  ReplicatedOptimizer(torch::optim::Optimizer& optimizer, const Modules& modules)
      : optimizer_(optimizer), modules_(modules), type_(optimizer_type(optimizer)) {
    (void)layout();  // throws for parameters that a checkpoint cannot hold
  }

  std::string type() const override { return "optimizer"; }
  Kind kind() const override { return Kind::replicated; }

  Section save() override {
    const OptimizerLayout layout = this->layout();
    std::vector<OptimizerShard::Piece> pieces;
    for (const auto& names : layout.groups) {
      for (const std::string& name : names) {
        const torch::Tensor& parameter = layout.parameters.at(name);
        const auto found = optimizer_.state().find(torch_compat::optimizer_key(parameter));
        if (found == optimizer_.state().end()) continue;
        pieces.push_back({name, parameter, 0, parameter.numel(), in_memory_order(*found->second, parameter)});
      }
    }
    return optimizer_section(layout, optimizer_, pieces);
  }

  void check(const std::vector<Section>& ranks) override {
    const OptimizerLayout layout = this->layout();
    SavedOptimizer(ranks, layout).check();
  }

  void load(const std::vector<Section>& ranks) override {
    const OptimizerLayout layout = this->layout();
    const SavedOptimizer saved(ranks, layout);
    const auto options = saved.groups();
    auto& groups = optimizer_.param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group)
      train::write_options(options[group], groups[group].options());
    optimizer_.state().clear();
    for (const std::string& name : saved.parameters()) {
      const torch::Tensor& parameter = layout.parameters.at(name);
      ParameterState on_device;
      for (const auto& [key, value] : saved.state(name, 0, parameter.numel()))
        on_device[key] = value.isTensor() ? c10::IValue(like(parameter, value.toTensor())) : value;
      auto state = make_parameter_state(optimizer_);
      train::write_state(on_device, *state);
      optimizer_.state()[torch_compat::optimizer_key(parameter)] = std::move(state);
    }
  }

 private:
  // One-dimensional, in the order of the parameter's memory.
  static ParameterState in_memory_order(const torch::optim::OptimizerParamState& state,
                                        const torch::Tensor& parameter) {
    const torch::NoGradGuard no_grad;
    ParameterState flat = train::read_state(state);
    for (auto& [key, value] : flat) {
      if (!value.isTensor()) continue;
      torch::Tensor tensor = value.toTensor();
      if (tensor.sizes() != parameter.sizes())
        fail_usage("a checkpoint cannot hold an optimizer's '{}': it is not of the parameter's shape", key);
      if (tensor.strides() != parameter.strides())
        tensor = torch::empty_strided(parameter.sizes(), parameter.strides(), tensor.options()).copy_(tensor);
      value = tensor.as_strided({tensor.numel()}, {1});
    }
    return flat;
  }

  static torch::Tensor like(const torch::Tensor& parameter, const torch::Tensor& saved) {
    const torch::NoGradGuard no_grad;
    return torch::empty_like(parameter.detach()).copy_(saved);
  }

  OptimizerLayout layout() const {
    std::map<const void*, std::string> names;
    for (const auto& [item, module] : modules_) {
      for (const NamedTensor& tensor : tensors_of(*module))
        names.emplace(tensor.tensor.unsafeGetTensorImpl(), tensor.name);
    }
    OptimizerLayout layout{.type = type_, .groups = {}, .parameters = {}};
    for (const auto& group : optimizer_.param_groups()) {
      auto& in_group = layout.groups.emplace_back();
      for (const torch::Tensor& parameter : group.params()) {
        const auto found = names.find(parameter.unsafeGetTensorImpl());
        const std::string name =
            found != names.end()
                ? found->second
                : fmt::format("group {} parameter {}", layout.groups.size() - 1, in_group.size());
        in_group.push_back(name);
        if (!layout.parameters.emplace(name, parameter).second)
          fail_usage(
              "a checkpoint cannot hold an optimizer with two parameters '{}': use an optimizer for each module, and parameters_of() for a module with tied weights",
              name);
        if (!parameter.is_non_overlapping_and_dense())
          fail_usage("a checkpoint cannot hold the optimizer's state of '{}': the parameter is not dense",
                     name);
      }
    }
    return layout;
  }

  torch::optim::Optimizer& optimizer_;
  const Modules& modules_;
  std::string type_;
};

}  // namespace

/// An optimizer whose state is spread over the ranks.
class ShardedOptimizer : public Item {
 public:
  explicit ShardedOptimizer(DistributedOptimizerBase& optimizer)
      : optimizer_(optimizer), type_(optimizer_type(optimizer.local_optimizer())) {}

  std::string type() const override { return "optimizer"; }
  Kind kind() const override { return Kind::per_rank; }

  Section save() override {
    const OptimizerShard shard = optimizer_.shard();
    return optimizer_section(layout(shard), optimizer_.local_optimizer(), shard.pieces);
  }

  void check(const std::vector<Section>& ranks) override {
    const OptimizerLayout layout = this->layout(optimizer_.shard());
    SavedOptimizer(ranks, layout).check();
  }

  std::vector<bool> needed(const std::vector<Section>& ranks) override {
    const OptimizerShard shard = optimizer_.shard();
    const OptimizerLayout layout = this->layout(shard);
    const SavedOptimizer saved(ranks, layout);
    std::vector<bool> needed(ranks.size());
    for (const train::Span& span : wanted_spans()) {
      const std::string& name = shard.parameters[span.parameter].first;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        if (saved.has(rank, name, span.begin, span.end)) needed[rank] = true;
    }
    if (std::find(needed.begin(), needed.end(), true) == needed.end()) needed[0] = true;  // for the options
    return needed;
  }

  void load(const std::vector<Section>& ranks) override {
    const OptimizerShard shard = optimizer_.shard();
    const OptimizerLayout layout = this->layout(shard);
    const SavedOptimizer saved(ranks, layout);
    const std::set<std::string> with_state(saved.parameters().begin(), saved.parameters().end());
    std::vector<train::StatePiece> pieces;
    for (const train::Span& span : wanted_spans()) {
      const auto& [name, parameter] = shard.parameters[span.parameter];
      pieces.push_back(with_state.contains(name)
                           ? train::cut(saved.state(name, span.begin, span.end), parameter, span)
                           : train::StatePiece{span, {}});
    }
    optimizer_.load_pieces(std::move(pieces), saved.groups());
  }

 private:
  std::vector<train::Span> wanted_spans() const {
    return optimizer_.wanted().spans_of(optimizer_.communicator_.rank());
  }

  OptimizerLayout layout(const OptimizerShard& shard) const {
    OptimizerLayout layout{.type = type_, .groups = shard.groups, .parameters = {}};
    for (const auto& [name, parameter] : shard.parameters) layout.parameters.emplace(name, parameter);
    return layout;
  }

  DistributedOptimizerBase& optimizer_;
  std::string type_;
};

ItemPointer optimizer_item(torch::optim::Optimizer& optimizer, const Modules& modules) {
  return std::make_unique<ReplicatedOptimizer>(optimizer, modules);
}

ItemPointer optimizer_item(DistributedOptimizerBase& optimizer) {
  return std::make_unique<ShardedOptimizer>(optimizer);
}

}  // namespace lockstep::checkpoint
