#include "staging/rendezvous/rendezvous_outcome.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/leaf/number.h"
#include "common/units.h"

namespace lockstep::transfer {
namespace {

constexpr std::uint32_t kMaxNodes = 1U << 20U;
constexpr std::size_t kMaxNames = 8;
constexpr std::size_t kMaxReasons = 3;
constexpr std::size_t kMaxExpanded = 1U << 20U;

nlohmann::json parse(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_object()) fail("a message is not a JSON object");
  return value;
}

template <typename Read>
auto reading(const std::string& text, const Read& read) {
  const nlohmann::json value = parse(text);
  try {
    return read(value);
  } catch (const nlohmann::json::exception& error) {
    fail("a message has a wrong field: {}", error.what());
  }
}

// Appends prefix + number for each number of "1-3,07", keeping leading zeros.
void expand_ranges(const std::string& prefix, std::string_view ranges, std::vector<std::string>& names) {
  for (std::size_t begin = 0; begin <= ranges.size();) {
    const std::size_t end = std::min(ranges.find(',', begin), ranges.size());
    const std::string_view range = ranges.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const auto first = to_number<std::uint64_t>(low);
    const auto last = to_number<std::uint64_t>(high);
    if (!first || !last) return;
    for (std::uint64_t number = *first; number <= *last && names.size() < kMaxExpanded; ++number) {
      names.push_back(fmt::format("{}{:0{}}", prefix, number, low.size()));
    }
  }
}

}  // namespace

std::string Hello::step_name() const {
  return fmt::format("{}.{}{}{}", job, step, component.empty() ? "" : "+", component);
}

std::string Hello::to_text() const {
  return nlohmann::json{
      {"job", job},     {"step", step},           {"node", node},           {"node_id", node_id},
      {"nodes", nodes}, {"node_list", node_list}, {"component", component}, {"again", replaces_process}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Hello Hello::from_text(const std::string& text) {
  Hello hello = reading(text, [](const nlohmann::json& value) {
    return Hello{value.at("job"),
                 value.at("step"),
                 value.at("node"),
                 value.at("node_id"),
                 value.at("nodes"),
                 value.at("node_list"),
                 value.value("component", ""),
                 value.value("again", false)};
  });
  if (hello.nodes == 0 || hello.nodes > kMaxNodes || hello.node_id >= hello.nodes) {
    fail("node {} of {} is impossible", hello.node_id, hello.nodes);
  }
  return hello;
}

std::string Verdict::to_text() const {
  nlohmann::json text{{"good", good}, {"why", why}, {"more", continues_in_background}};
  if (seconds > 0) text["seconds"] = seconds;
  if (!times.empty()) text["times"] = times;
  return text.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Verdict Verdict::from_text(const std::string& text) {
  return reading(text, [](const nlohmann::json& value) {
    return Verdict{value.at("good"), value.at("why"), value.value("more", false), value.value("seconds", 0.0),
                   value.value("times", "")};
  });
}

std::string describe_times(std::vector<std::pair<double, std::string>> seconds) {
  if (seconds.size() < 2) return "";
  std::sort(seconds.begin(), seconds.end());
  return fmt::format("{} to {}, median {}; the slowest is {}", format_seconds(seconds.front().first),
                     format_seconds(seconds.back().first), format_seconds(seconds[seconds.size() / 2].first),
                     seconds.back().second);
}

std::string RoundMessage::to_text() const {
  return nlohmann::json{{"round", round}, {"data", data}}.dump(-1, ' ', true,
                                                               nlohmann::json::error_handler_t::replace);
}

RoundMessage RoundMessage::from_text(const std::string& text) {
  return reading(text, [](const nlohmann::json& value) {
    return RoundMessage{value.at("round"), value.at("data")};
  });
}

nlohmann::json group_nodes(const std::map<std::uint32_t, nlohmann::json>& data) {
  struct Group {
    std::string nodes;
    std::uint32_t first = 0, last = 0;
    void end_range() {
      nodes += fmt::format("{}{}", nodes.empty() ? "" : ",", first);
      if (last > first) nodes += fmt::format("-{}", last);
    }
  };
  std::map<nlohmann::json, Group> groups;
  for (const auto& [node, value] : data) {
    const auto [at, fresh] = groups.try_emplace(value, Group{"", node, node});
    Group& group = at->second;
    if (!fresh && group.last + 1 != node) {
      group.end_range();
      group.first = node;
    }
    group.last = node;
  }
  nlohmann::json list = nlohmann::json::array();
  for (auto& [value, group] : groups) {
    group.end_range();
    list.push_back({group.nodes, value});
  }
  return list;
}

nlohmann::json ungroup_nodes(const nlohmann::json& groups) {
  nlohmann::json all = nlohmann::json::object();
  for (const nlohmann::json& group : groups) {
    if (!group.is_array() || group.size() != 2 || !group[0].is_string()) fail("a round has a wrong answer");
    std::vector<std::string> nodes;
    expand_ranges("", group[0].get<std::string>(), nodes);
    for (const std::string& node : nodes) all[node] = group[1];
  }
  return all;
}

Message kind_of(const std::string& text) {
  if (text == kAlive) return Message::alive;
  return text.starts_with("{\"good\"") ? Message::verdict : Message::round;
}

std::vector<std::string> expand_node_list(const std::string& list) {
  std::vector<std::string> names;
  std::string prefix;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') {
      const std::size_t end = list.find(']', i);
      if (end == std::string::npos) return names;
      expand_ranges(prefix, std::string_view(list).substr(i + 1, end - i - 1), names);
      prefix.clear();
      i = end;
    } else if (list[i] == ',') {
      if (!prefix.empty()) names.push_back(std::move(prefix));
      prefix.clear();
    } else {
      prefix += list[i];
    }
  }
  if (!prefix.empty()) names.push_back(std::move(prefix));
  return names;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMaxNames; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMaxNames) text += fmt::format(", ... ({} nodes)", names.size());
  return text;
}

std::string describe(const std::map<std::string, std::string>& why_by_node) {
  std::map<std::string, std::vector<std::string>> nodes_by_why;
  for (const auto& [node, why] : why_by_node) nodes_by_why[why].push_back(node);
  std::string text;
  std::size_t reasons = 0;
  for (const auto& [why, nodes] : nodes_by_why) {
    if (reasons++ == kMaxReasons)
      return fmt::format("{}; and {} more reasons", text, nodes_by_why.size() - kMaxReasons);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", join_names(nodes), why);
  }
  return text;
}

}  // namespace lockstep::transfer
