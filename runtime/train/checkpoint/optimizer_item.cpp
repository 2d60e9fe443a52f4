// The state of an optimizer in a checkpoint, as the ranks that saved kept it. The first rank's section has the layout: the
// parameters, the groups, and the buckets; every rank computes from them which rank saved which elements. The section of each
// rank has its pieces, as tensors, and the numbers of their parameters, which differ if some were not used.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/error.h"
#include "runtime/torch_version.h"
#include "runtime/train/checkpoint/files_of_items.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/distributed_optimizer.h"
#include "runtime/train/optimizer_state.h"
#include "runtime/train/partition.h"

namespace lockstep::checkpoint {

/// The parts of an optimizer that must be the same when its state is loaded.
struct OptimizerLayout {
  std::string type;                              ///< "AdamW"
  std::vector<std::vector<std::string>> groups;  ///< the names of the parameters in each group
  std::vector<std::pair<std::string, torch::Tensor>> parameters;  ///< of all groups, one after the other
};

struct OptimizerContent {
  std::vector<train::StatePiece> state;  ///< of the wanted spans, in their order
  std::vector<torch::Tensor> groups;     ///< their options
};

namespace {

using nlohmann::json;

std::string options_name(std::size_t group) {
  return fmt::format("param_groups.{}", group);
}

json number_of(const c10::IValue& value, const std::string& key) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  if (value.isDouble()) return value.toDouble();
  fail_usage("a checkpoint cannot hold an optimizer's '{}': it is not a tensor or a number", key);
}

c10::IValue value_of(const json& number) {
  if (number.is_boolean()) return number.get<bool>();
  if (number.is_number_integer()) return number.get<std::int64_t>();
  return number.get<double>();
}

// Compares types, and the names in each group.
void check_groups(const json& saved, const OptimizerLayout& current) {
  const std::string type = saved.at("type");
  if (type != current.type) fail("the optimizer is {} in the checkpoint, but {} here", type, current.type);
  const auto groups = saved.at("groups").get<std::vector<std::vector<std::string>>>();
  if (groups.size() != current.groups.size())
    fail("the optimizer has {} groups of parameters in the checkpoint, but {} here", groups.size(),
         current.groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& theirs = groups[group];
    const auto& mine = current.groups[group];
    const std::size_t both = std::min(theirs.size(), mine.size());
    for (std::size_t i = 0; i < both; ++i) {
      if (theirs[i] != mine[i])
        fail("parameter {} of the optimizer's group {} is '{}' in the checkpoint, but '{}' here", i, group,
             theirs[i], mine[i]);
    }
    if (theirs.size() != mine.size())
      fail("group {} of the optimizer has {} parameters in the checkpoint, but {} here: '{}' is only {}",
           group, theirs.size(), mine.size(), theirs.size() > both ? theirs[both] : mine[both],
           theirs.size() > both ? "in the checkpoint" : "here");
  }
}

// "weight.exp_avg", or "weight.exp_avg[0:100]" of a part.
std::string tensor_name(const std::string& parameter, const std::string& key, const train::Span& span,
                        std::int64_t elements) {
  const std::string name = fmt::format("{}.{}", parameter, key);
  return span.size() == elements ? name : fmt::format("{}[{}:{}]", name, span.begin, span.end);
}

json description_of(const torch::Tensor& parameter) {
  return {{"type", c10::toString(parameter.scalar_type())},
          {"sizes", parameter.sizes().vec()},
          {"strides", parameter.strides().vec()}};
}

json description_of(const train::Partition& partition) {
  json buckets = json::array();
  for (const train::BucketLayout& bucket : partition.buckets()) {
    json members = json::array();
    for (const auto& member : bucket.members)
      members.push_back({member.parameter, member.position, member.elements});
    buckets.push_back({{"elements", bucket.count}, {"parameters", members}});
  }
  return buckets;
}

/// Puts the elements of one span together, which several files have.
struct Assembly {
  train::StatePiece piece;
  std::map<std::string, std::int64_t> covered = {};  // elements, by key

  /// The memory of the elements `part`.
  std::span<std::byte> place_of(const std::string& key, torch::ScalarType type, const train::Span& part) {
    c10::IValue& value = piece.state[key];
    if (!value.isTensor()) value = torch::empty({piece.span.size()}, type);
    const torch::Tensor& tensor = value.toTensor();
    if (tensor.scalar_type() != type) throw Damaged(fmt::format("its files have '{}' of several types", key));
    covered[key] += part.size();
    const std::size_t element = tensor.element_size();
    return {static_cast<std::byte*>(tensor.data_ptr()) +
                static_cast<std::size_t>(part.begin - piece.span.begin) * element,
            static_cast<std::size_t>(part.size()) * element};
  }

  void require_whole(const std::string& parameter) const {
    for (const auto& [key, elements] : covered) {
      if (elements != piece.span.size())
        throw Damaged(fmt::format("it has {} of {} elements of '{}' of parameter '{}'", elements,
                                  piece.span.size(), key, parameter));
    }
  }
};

/// One file of an optimizer.
class RankFile {
 public:
  RankFile(const ItemFiles& files, const train::Partition& partition, int rank)
      : entry_(files.of_rank(rank)), header_(files.header(entry_)), own_(partition.spans_of(rank)) {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
    try {
      const json values = section_values(header_, entry_.item);
      for (const auto& [key, list] : values.at("numbers").items()) {
        for (const json& number : list)
          numbers_[key].push_back(number.is_null() ? c10::IValue() : value_of(number));
        numbers_[key].resize(own_.size());
      }
    } catch (const json::exception&) {
      throw Damaged(fmt::format("{} cannot be read: its description is damaged", entry_.name));
    }
  }

  torch::Tensor options(std::size_t group) {
    const std::string name = options_name(group);
    const auto found = index_.find(name);
    if (found == index_.end()) throw Damaged(fmt::format("{} has no '{}'", entry_.name, name));
    auto tensor = torch::empty(header_.tensors[found->second].tensor.sizes(), torch::kUInt8);
    parts_.push_back(
        {header_.offsets[found->second], {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
    return tensor;
  }

  /// Takes the elements `part`, which the file has.
  void take(const std::pair<std::string, torch::Tensor>& parameter, const train::Span& part,
            const std::vector<std::string>& keys, Assembly& into) {
    const auto own =
        std::lower_bound(own_.begin(), own_.end(), part.parameter,
                         [](const train::Span& span, std::size_t wanted) { return span.parameter < wanted; });
    for (const auto& [key, numbers] : numbers_) {
      const c10::IValue& number = numbers[static_cast<std::size_t>(own - own_.begin())];
      if (!number.isNone()) into.piece.state[key] = number;
    }
    for (const std::string& key : keys) {
      const auto found = index_.find(tensor_name(parameter.first, key, *own, parameter.second.numel()));
      if (found == index_.end()) continue;
      const torch::Tensor& saved = header_.tensors[found->second].tensor;
      if (saved.numel() != own->size()) throw Damaged(fmt::format("'{}' has a wrong size", found->first));
      parts_.push_back({header_.offsets[found->second] +
                            static_cast<std::uint64_t>(part.begin - own->begin) * saved.element_size(),
                        into.place_of(key, saved.scalar_type(), part)});
    }
  }

  void read(const ItemFiles& files) { files.read(entry_, std::move(parts_)); }

 private:
  const FileEntry& entry_;
  TensorFile header_;
  std::vector<train::Span> own_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::vector<c10::IValue>> numbers_;  // by key, of own_
  std::vector<FilePart> parts_;
};

/// The section of a rank. `state`: of the spans that `partition` gives to the rank; those without state may be missing.
Section optimizer_section(const OptimizerLayout& layout, const torch::optim::Optimizer& options,
                          const train::Partition& partition, int rank,
                          const std::vector<train::StatePiece>& state) {
  Section section;
  if (rank == 0) {
    section.values = {{"type", layout.type},
                      {"groups", layout.groups},
                      {"parameters", json::array()},
                      {"buckets", description_of(partition)}};
    for (const auto& [name, parameter] : layout.parameters)
      section.values["parameters"].push_back(description_of(parameter));
  }
  const auto& groups = options.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    section.tensors.push_back({options_name(group), train::read_options(groups[group].options())});
  std::map<std::size_t, const train::StatePiece*> by_parameter;
  for (const train::StatePiece& piece : state) by_parameter[piece.span.parameter] = &piece;
  const auto spans = partition.spans_of(rank);
  json& numbers = section.values["numbers"] = json::object();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto piece = by_parameter.find(spans[i].parameter);
    if (piece == by_parameter.end()) continue;
    const auto& [name, parameter] = layout.parameters[spans[i].parameter];
    for (const auto& [key, value] : piece->second->state) {
      if (value.isTensor()) {
        section.tensors.push_back({tensor_name(name, key, spans[i], parameter.numel()), value.toTensor()});
        continue;
      }
      json& list = numbers[key];
      if (list.is_null()) list = std::vector<json>(spans.size());
      list[i] = number_of(value, key);
    }
  }
  return section;
}

/// Throws Error naming the first difference if the groups or the parameters differ.
void check_optimizer(const Section& saved, const OptimizerLayout& layout) {
  check_groups(saved.values, layout);
  const json& parameters = saved.values.at("parameters");
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const auto& [name, parameter] = layout.parameters[i];
    const json mine = description_of(parameter);
    const json& theirs = parameters.at(i);
    if (theirs.at("type") != mine.at("type") || theirs.at("sizes") != mine.at("sizes"))
      fail("the optimizer's parameter '{}' is {} {} in the checkpoint, but {} here", name,
           theirs.at("type").get<std::string>(), theirs.at("sizes").dump(), describe(parameter));
  }
}

/// As `ranks` ranks saved it.
train::Partition saved_partition(const Section& saved, int ranks) {
  std::vector<train::BucketLayout> buckets;
  for (const json& bucket : saved.values.at("buckets")) {
    buckets.push_back({.count = bucket.at("elements"), .members = {}});
    for (const json& member : bucket.at("parameters"))
      buckets.back().members.push_back(
          {.parameter = member.at(0), .position = member.at(1), .elements = member.at(2)});
  }
  return {std::move(buckets), ranks};
}

/// Reads the files that have some of the wanted elements, and verifies them. `keys`: train::state_keys(). Throws Damaged.
OptimizerContent read_optimizer(const Section& saved, const ItemFiles& files, const OptimizerLayout& layout,
                                const std::vector<train::Span>& wanted,
                                const std::vector<std::string>& keys) {
  const torch::NoGradGuard no_grad;
  const train::Partition partition = saved_partition(saved, files.ranks());
  // If the memory of a parameter had another order, all elements are needed.
  const auto strides = [&](std::size_t parameter) {
    return saved.values.at("parameters").at(parameter).at("strides").get<std::vector<std::int64_t>>();
  };
  std::vector<train::Span> spans;
  std::map<std::size_t, Assembly> assemblies;  // by parameter
  for (train::Span span : wanted) {
    const torch::Tensor& parameter = layout.parameters[span.parameter].second;
    if (parameter.strides() != strides(span.parameter)) span = {span.parameter, 0, parameter.numel()};
    spans.push_back(span);
    assemblies[span.parameter] = {.piece = {span, {}}};
  }
  auto peers = train::by_owner(spans, partition);
  if (peers.empty()) peers.push_back({.peer = 0, .spans = {}});  // for the options
  OptimizerContent content;
  for (const train::PeerSpans& peer : peers) {
    RankFile file(files, partition, peer.peer);
    for (std::size_t group = 0; &peer == &peers.front() && group < layout.groups.size(); ++group)
      content.groups.push_back(file.options(group));
    for (const train::Span& part : peer.spans)
      file.take(layout.parameters[part.parameter], part, keys, assemblies.at(part.parameter));
    file.read(files);
  }
  for (const train::Span& span : wanted) {
    const auto& [name, parameter] = layout.parameters[span.parameter];
    Assembly& assembly = assemblies.at(span.parameter);
    assembly.require_whole(name);
    if (assembly.piece.span == span) {
      content.state.push_back(std::move(assembly.piece));
      continue;
    }
    for (auto& [key, value] : assembly.piece.state) {
      if (value.isTensor()) value = value.toTensor().as_strided(parameter.sizes(), strides(span.parameter));
    }
    content.state.push_back(train::cut(assembly.piece.state, parameter, span));
  }
  return content;
}

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
