#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/error.h"
#include "runtime/torch_version.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/checkpoint/optimizer_section.h"
#include "runtime/train/distributed_optimizer.h"

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
    std::vector<train::StatePiece> state;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      const torch::Tensor& parameter = layout.parameters[i].second;
      const auto found = optimizer_.state().find(torch_compat::optimizer_key(parameter));
      if (found == optimizer_.state().end()) continue;
      state.push_back({{i, 0, parameter.numel()}, in_memory_order(*found->second, parameter)});
    }
    return optimizer_section(layout, optimizer_, whole(layout), 0, state);
  }

  void check(const Section& saved) override { check_optimizer(saved, layout()); }

  bool reads() const override { return true; }

  void read(const Section& saved, const ItemFiles& files) override {
    const OptimizerLayout layout = this->layout();
    read_ = read_optimizer(saved, files, layout, whole(layout).spans_of(0),
                           train::state_keys(*make_parameter_state(optimizer_)));
  }

  void load(const Section& /*saved*/) override {
    const torch::NoGradGuard no_grad;
    const OptimizerContent content = std::exchange(read_, {});
    auto& groups = optimizer_.param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group)
      train::write_options(content.groups[group], groups[group].options());
    optimizer_.state().clear();
    const OptimizerLayout layout = this->layout();
    for (const train::StatePiece& piece : content.state) {
      if (piece.state.empty()) continue;
      const torch::Tensor& parameter = layout.parameters[piece.span.parameter].second;
      ParameterState on_device = piece.state;
      for (auto& [key, value] : on_device) {
        if (!value.isTensor()) continue;
        value = value.toTensor().as_strided(parameter.sizes(), parameter.strides()).to(parameter.device());
      }
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

  static train::Partition whole(const OptimizerLayout& layout) {
    std::vector<std::int64_t> elements;
    for (const auto& [name, parameter] : layout.parameters) elements.push_back(parameter.numel());
    return train::Partition::of_parameters(elements, 1);
  }

  OptimizerLayout layout() const {
    std::map<const void*, std::string> names;
    for (const auto& [item, module] : modules_) {
      for (const NamedTensor& tensor : tensors_of(*module))
        names.emplace(tensor.tensor.unsafeGetTensorImpl(), tensor.name);
    }
    OptimizerLayout layout{.type = type_, .groups = {}, .parameters = {}};
    std::set<std::string> taken;
    for (const auto& group : optimizer_.param_groups()) {
      auto& in_group = layout.groups.emplace_back();
      for (const torch::Tensor& parameter : group.params()) {
        const auto found = names.find(parameter.unsafeGetTensorImpl());
        const std::string name =
            found != names.end()
                ? found->second
                : fmt::format("group {} parameter {}", layout.groups.size() - 1, in_group.size());
        in_group.push_back(name);
        layout.parameters.emplace_back(name, parameter);
        if (!taken.insert(name).second)
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
  OptimizerContent read_;
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
    const train::OptimizerShard shard = optimizer_.shard();
    return optimizer_section(layout(), optimizer_.local_optimizer(), shard.partition, rank(), shard.state);
  }

  void check(const Section& saved) override { check_optimizer(saved, layout()); }

  bool reads() const override { return true; }

  void read(const Section& saved, const ItemFiles& files) override {
    partition_ = saved_partition(saved, files.ranks()).on(optimizer_.communicator_.size());
    read_ = read_optimizer(saved, files, layout(), partition_->spans_of(rank()), optimizer_.state_keys());
  }

  void load(const Section& /*saved*/) override {
    OptimizerContent content = std::exchange(read_, {});
    optimizer_.load_shard({std::exchange(partition_, std::nullopt).value(), std::move(content.state)},
                          content.groups);
  }

 private:
  int rank() const { return optimizer_.communicator_.rank(); }

  OptimizerLayout layout() const {
    OptimizerLayout layout{.type = type_, .groups = {}, .parameters = optimizer_.parameters_};
    layout.groups.resize(optimizer_.local_optimizer().param_groups().size());
    for (std::size_t i = 0; i < optimizer_.parameters_.size(); ++i)
      layout.groups[optimizer_.group_of_[i]].push_back(optimizer_.parameters_[i].first);
    return layout;
  }

  DistributedOptimizerBase& optimizer_;
  std::string type_;
  std::optional<train::Partition> partition_;  // of what was read
  OptimizerContent read_;
};

ItemPointer optimizer_item(torch::optim::Optimizer& optimizer, const Modules& modules) {
  return std::make_unique<ReplicatedOptimizer>(optimizer, modules);
}

ItemPointer optimizer_item(DistributedOptimizerBase& optimizer) {
  return std::make_unique<ShardedOptimizer>(optimizer);
}

}  // namespace lockstep::checkpoint
