#include "runtime/train/checkpoint/optimizer_section.h"

#include <c10/util/accumulate.h>

#include <algorithm>
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
void check_layout(const json& saved, const OptimizerLayout& current) {
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

/// Puts the pieces of one parameter together that have some of the elements [begin, end).
class Assembly {
 public:
  Assembly(std::int64_t begin, std::int64_t end) : begin_(begin), end_(end) {}

  void add(const json& piece, const Section& section) {
    for (const auto& [key, number] : piece.at("numbers").items()) numbers_[key] = value_of(number);
    const std::int64_t begin = piece.at("begin");
    const std::int64_t end = piece.at("end");
    sizes_ = piece.at("sizes").get<std::vector<std::int64_t>>();
    strides_ = piece.at("strides").get<std::vector<std::int64_t>>();
    for (const auto& [key, name] : piece.at("tensors").items()) {
      const torch::Tensor& part = tensor_in(section, name.get<std::string>());
      const std::int64_t elements = c10::multiply_integers(sizes_);
      auto& whole = tensors_[key];
      if (begin < 0 || begin > end || end > elements || part.numel() != end - begin ||
          (whole.defined() && part.scalar_type() != whole.scalar_type()))
        fail("the pieces of an optimizer's tensor '{}' do not fit together", name.get<std::string>());
      covered_[key] += std::max<std::int64_t>(0, std::min(end, end_) - std::max(begin, begin_));
      if (part.numel() == elements && !whole.defined()) {
        whole = part.flatten();
        continue;
      }
      if (!whole.defined()) whole = torch::empty({elements}, part.options());
      whole.slice(0, begin, end).copy_(part.flatten());
    }
  }

  ParameterState state(const std::string& parameter) const {
    ParameterState state = numbers_;
    for (const auto& [key, whole] : tensors_) {
      if (covered_.at(key) != end_ - begin_)
        fail("the checkpoint has {} of {} elements of '{}' of parameter '{}'", covered_.at(key),
             end_ - begin_, key, parameter);
      // In the parameter's shape; the elements lie in the order of its memory.
      state[key] = whole.as_strided(sizes_, strides_);
    }
    return state;
  }

 private:
  std::int64_t begin_;
  std::int64_t end_;
  ParameterState numbers_;
  std::map<std::string, torch::Tensor> tensors_;
  std::map<std::string, std::int64_t> covered_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

void check_state(const std::string& name, const ParameterState& state, const torch::Tensor& parameter) {
  for (const auto& [key, value] : state) {
    if (!value.isTensor()) continue;
    const torch::Tensor& tensor = value.toTensor();
    if (tensor.sizes() != parameter.sizes() || tensor.scalar_type() != parameter.scalar_type())
      fail("the optimizer's {} of parameter '{}' is {} in the checkpoint, but the parameter is {} here", key,
           name, describe(tensor), describe(parameter));
  }
}

}  // namespace

Section optimizer_section(const OptimizerLayout& layout, const torch::optim::Optimizer& options,
                          const std::vector<OptimizerShard::Piece>& pieces) {
  Section section;
  section.values["type"] = layout.type;
  section.values["groups"] = layout.groups;
  const auto& groups = options.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    section.tensors.push_back({options_name(group), train::read_options(groups[group].options())});
  json& list = section.values["pieces"] = json::array();
  for (const auto& piece : pieces) {
    json entry{{"parameter", piece.name},
               {"begin", piece.begin},
               {"end", piece.end},
               {"sizes", piece.parameter.sizes().vec()},
               {"strides", piece.parameter.strides().vec()},
               {"numbers", json::object()},
               {"tensors", json::object()}};
    for (const auto& [key, value] : piece.state) {
      if (!value.isTensor()) {
        entry["numbers"][key] = number_of(value, key);
        continue;
      }
      const bool whole = piece.begin == 0 && piece.end == piece.parameter.numel();
      const std::string name = whole ? fmt::format("{}.{}", piece.name, key)
                                     : fmt::format("{}.{}[{}:{}]", piece.name, key, piece.begin, piece.end);
      entry["tensors"][key] = name;
      section.tensors.push_back({name, value.toTensor()});
    }
    list.push_back(std::move(entry));
  }
  return section;
}

SavedOptimizer::SavedOptimizer(const std::vector<Section>& ranks, const OptimizerLayout& layout)
    : ranks_(ranks), layout_(layout) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    check_layout(ranks[rank].values, layout);
    for (const json& piece : ranks[rank].values.at("pieces"))
      pieces_[piece.at("parameter").get<std::string>()].push_back({rank, &piece});
  }
  for (const auto& [name, pieces] : pieces_) {
    if (!layout.parameters.contains(name))
      fail("the optimizer's state has parameter '{}', which it does not have here", name);
    names_.push_back(name);
  }
}

void SavedOptimizer::check() const {
  for (const std::string& name : names_) {
    const torch::Tensor& parameter = layout_.parameters.at(name);
    const json& first = *pieces_.at(name).front().description;
    const auto sizes = first.at("sizes").get<std::vector<std::int64_t>>();
    check_state(name, state(name, 0, c10::multiply_integers(sizes)), parameter);
  }
  (void)groups();
}

std::vector<torch::Tensor> SavedOptimizer::groups() const {
  std::vector<torch::Tensor> groups;
  for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
    for (const Section& section : ranks_) {
      const torch::Tensor& options = tensor_in(section, options_name(group));
      if (&section == &ranks_.back() || !options.is_meta()) {
        groups.push_back(options);
        break;
      }
    }
  }
  return groups;
}

// If the memory of the parameter had another order, all elements are needed.
bool SavedOptimizer::overlaps(const Piece& piece, const torch::Tensor& parameter, std::int64_t begin,
                              std::int64_t end) const {
  const json& description = *piece.description;
  if (description.at("strides").get<std::vector<std::int64_t>>() != parameter.strides()) return true;
  return description.at("begin").get<std::int64_t>() < end &&
         description.at("end").get<std::int64_t>() > begin;
}

bool SavedOptimizer::has(std::size_t rank, const std::string& parameter, std::int64_t begin,
                         std::int64_t end) const {
  const auto found = pieces_.find(parameter);
  return found != pieces_.end() &&
         std::any_of(found->second.begin(), found->second.end(), [&](const Piece& piece) {
           return piece.rank == rank && overlaps(piece, layout_.parameters.at(parameter), begin, end);
         });
}

ParameterState SavedOptimizer::state(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor& parameter = layout_.parameters.at(name);
  const auto& pieces = pieces_.at(name);
  const json& first = *pieces.front().description;
  if (first.at("strides").get<std::vector<std::int64_t>>() != parameter.strides()) {
    begin = 0;
    end = c10::multiply_integers(first.at("sizes").get<std::vector<std::int64_t>>());
  }
  Assembly assembly(begin, end);
  for (const Piece& piece : pieces) {
    if (overlaps(piece, parameter, begin, end)) assembly.add(*piece.description, ranks_[piece.rank]);
  }
  return assembly.state(name);
}

}  // namespace lockstep::checkpoint
