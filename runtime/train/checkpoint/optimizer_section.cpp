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
void check_layout(const json& saved, const OptimizerLayout& here) {
  const std::string type = saved.at("type");
  if (type != here.type) fail("the optimizer is {} in the checkpoint, but {} here", type, here.type);
  const auto groups = saved.at("groups").get<std::vector<std::vector<std::string>>>();
  if (groups.size() != here.groups.size())
    fail("the optimizer has {} groups of parameters in the checkpoint, but {} here", groups.size(),
         here.groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& theirs = groups[group];
    const auto& mine = here.groups[group];
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

/// Puts one parameter's pieces together.
class Assembly {
 public:
  void add(const json& piece, const Section& section) {
    for (const auto& [key, number] : piece.at("numbers").items()) numbers_[key] = value_of(number);
    const std::int64_t begin = piece.at("begin");
    const std::int64_t end = piece.at("end");
    sizes_ = piece.at("sizes").get<std::vector<std::int64_t>>();
    strides_ = piece.at("strides").get<std::vector<std::int64_t>>();
    for (const auto& [key, name] : piece.at("tensors").items()) {
      const torch::Tensor& part = tensor_in(section, name.get<std::string>());
      auto& whole = tensors_[key];
      if (!whole.defined()) whole = torch::empty({c10::multiply_integers(sizes_)}, part.options());
      if (begin < 0 || begin > end || end > whole.numel() || part.numel() != end - begin ||
          part.scalar_type() != whole.scalar_type())
        fail("the pieces of an optimizer's tensor '{}' do not fit together", name.get<std::string>());
      whole.slice(0, begin, end).copy_(part.flatten());
      covered_[key] += end - begin;
    }
  }

  ParameterState state(const std::string& parameter) const {
    ParameterState state = numbers_;
    for (const auto& [key, whole] : tensors_) {
      if (covered_.at(key) != whole.numel())
        fail("the checkpoint has {} of {} elements of '{}' of parameter '{}'", covered_.at(key),
             whole.numel(), key, parameter);
      // In the parameter's shape; the elements lie in the order of its memory.
      state[key] = whole.as_strided(sizes_, strides_);
    }
    return state;
  }

 private:
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

OptimizerState whole_state(const std::vector<Section>& ranks, const OptimizerLayout& layout) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, Assembly> assemblies;
  for (const Section& section : ranks) {
    check_layout(section.values, layout);
    for (const json& piece : section.values.at("pieces"))
      assemblies[piece.at("parameter").get<std::string>()].add(piece, section);
  }
  OptimizerState whole;
  for (const auto& [name, assembly] : assemblies) {
    const auto parameter = layout.parameters.find(name);
    if (parameter == layout.parameters.end())
      fail("the optimizer's state has parameter '{}', which it does not have here", name);
    whole.parameters[name] = assembly.state(name);
    check_state(name, whole.parameters[name], parameter->second);
  }
  for (std::size_t group = 0; group < layout.groups.size(); ++group)
    whole.groups.push_back(tensor_in(ranks.at(0), options_name(group)));
  return whole;
}

}  // namespace lockstep::checkpoint
