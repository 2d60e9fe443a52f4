#include "runtime/train/checkpoint/optimizer_section.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/error.h"

namespace lockstep::checkpoint {
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

}  // namespace

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

}  // namespace lockstep::checkpoint
