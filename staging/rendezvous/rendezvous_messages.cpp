#include "staging/rendezvous/rendezvous_messages.h"

#include <string_view>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using nlohmann::json;

constexpr std::string_view kStates = "hnbs";  // of SourceState

unsigned bit(char state) {
  return 1U << kStates.find(state);
}

constexpr std::uint32_t kMaxNodes = 1U << 20U;

std::string dump(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

template <typename Read>
auto reading(const std::string& text, const Read& read) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) fail("a message is not a JSON object");
  try {
    return read(value);
  } catch (const json::exception& error) {
    fail("a message has a wrong field: {}", error.what());
  }
}

}  // namespace

json ring_part_json(const RingPart& part) {
  std::string sources;
  for (const SourcePart source : part.sources) sources += static_cast<char>(source);
  return {{"nodes", part.nodes},
          {"place", part.place},
          {"predecessor", part.predecessor.node},
          {"peer", part.predecessor},
          {"sources", sources}};
}

RingPart ring_part_from(const json& message) {
  try {
    RingPart part{.nodes = message.at("nodes"),
                  .place = message.at("place"),
                  .predecessor = message.at("peer"),
                  .sources = {}};
    part.predecessor.node = message.at("predecessor");
    for (const char source : message.at("sources").get<std::string>())
      part.sources.push_back(static_cast<SourcePart>(source));
    if (part.nodes == 0 || part.place >= part.nodes) fail("srun's helper sent a wrong ring");
    return part;
  } catch (const json::exception& error) {
    fail("srun's helper sent a wrong field: {}", error.what());
  }
}

void RingStates::add(const std::string& states) {
  if (!any_) seen_.resize(states.size());
  any_ = true;
  if (seen_.size() != states.size()) fail("the nodes of the step were given different sources");
  if (states.find_first_not_of(kStates) != std::string::npos)
    fail("a node of the step sent an unknown state of a source");
  for (std::size_t s = 0; s < states.size(); ++s) seen_[s] |= bit(states[s]);
}

std::vector<SourcePart> RingStates::parts(bool lost) const {
  std::vector<SourcePart> parts;
  for (const unsigned seen : seen_) {
    const auto saw = [&](SourceState state) { return (seen & bit(static_cast<char>(state))) != 0; };
    if (!saw(SourceState::needs) && !saw(SourceState::busy)) {
      parts.push_back(SourcePart::none);
    } else if (saw(SourceState::staged)) {
      parts.push_back(SourcePart::unsure);
    } else if (!saw(SourceState::needs)) {
      parts.push_back(SourcePart::busy);
    } else {
      parts.push_back(saw(SourceState::has) && !lost ? SourcePart::held : SourcePart::read);
    }
  }
  return parts;
}

std::string Hello::step_name() const {
  return fmt::format("{}.{}{}{}", job, step, component.empty() ? "" : "+", component);
}

std::string Hello::to_text() const {
  return dump({{"job", job},
               {"step", step},
               {"node", node},
               {"node_id", node_id},
               {"nodes", nodes},
               {"node_list", node_list},
               {"component", component},
               {"again", replaces_process}});
}

Hello Hello::from_text(const std::string& text) {
  Hello hello = reading(text, [](const json& value) {
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
  json text{{"good", good}, {"why", why}, {"more", continues_in_background}};
  if (seconds > 0) text["seconds"] = seconds;
  if (!times.empty()) text["times"] = times;
  return dump(text);
}

Verdict Verdict::from_text(const std::string& text) {
  return reading(text, [](const json& value) {
    return Verdict{value.at("good"), value.at("why"), value.value("more", false), value.value("seconds", 0.0),
                   value.value("times", "")};
  });
}

std::string RoundMessage::to_text() const {
  return dump({{"round", round}, {"data", data}});
}

RoundMessage RoundMessage::from_text(const std::string& text) {
  return reading(text, [](const json& value) { return RoundMessage{value.at("round"), value.at("data")}; });
}

json group_nodes(const std::map<std::uint32_t, json>& data) {
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
  json list = json::array();
  for (auto& [value, group] : groups) {
    group.end_range();
    list.push_back({group.nodes, value});
  }
  return list;
}

json ungroup_nodes(const json& groups) {
  json all = json::object();
  for (const json& group : groups) {
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
