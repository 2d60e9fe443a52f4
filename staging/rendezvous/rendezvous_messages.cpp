#include "staging/rendezvous/rendezvous_messages.h"

namespace lockstep::transfer {
namespace {

constexpr std::uint32_t kMaxNodes = 1U << 20U;

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

nlohmann::json to_json(const Contents& contents) {
  nlohmann::json answer{{"equal", contents.equal}, {"again", contents.again}, {"lost", contents.lost}};
  if (!contents.suspects.empty()) answer["suspects"] = contents.suspects;
  return answer;
}

Contents contents_from(const nlohmann::json& value) {
  return {.equal = value.at("equal"),
          .again = value.at("again"),
          .lost = value.at("lost"),
          .suspects = value.value("suspects", std::vector<Suspect>())};
}

nlohmann::json to_json(const NodeProgress& progress) {
  return {{"source", progress.source},
          {"done", progress.done},
          {"total", progress.total},
          {"seconds", progress.seconds}};
}

NodeProgress node_progress_from(const nlohmann::json& value) {
  return {value.at("source"), value.at("done"), value.at("total"), value.at("seconds")};
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
    for (const std::string& node : expand_node_list("[" + group[0].get<std::string>() + "]"))
      all[node] = group[1];
  }
  return all;
}

Message kind_of(const std::string& text) {
  if (text == kAlive) return Message::alive;
  return text.starts_with("{\"good\"") ? Message::verdict : Message::round;
}

}  // namespace lockstep::transfer
