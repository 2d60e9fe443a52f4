#include "staging/rendezvous/ring_states.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/error.h"

namespace lockstep::transfer {

using nlohmann::json;

json to_json(const RingPart& part) {
  std::string sources;
  for (const SourcePart source : part.sources) sources += static_cast<char>(source);
  return {{"nodes", part.nodes},
          {"place", part.place},
          {"predecessor", part.predecessor.node},
          {"name", part.predecessor.name},
          {"hosts", part.predecessor.hosts},
          {"port", part.predecessor.port},
          {"sources", sources}};
}

RingPart::Peer ring_peer_from(const json& message) {
  return {.name = message.at("name"),
          .hosts = message.at("hosts").get<std::vector<std::string>>(),
          .port = message.at("port")};
}

RingPart ring_part_from(const json& message) {
  try {
    RingPart part;
    part.nodes = message.at("nodes");
    part.place = message.at("place");
    part.predecessor = ring_peer_from(message);
    part.predecessor.node = message.at("predecessor");
    for (const char source : message.at("sources").get<std::string>())
      part.sources.push_back(static_cast<SourcePart>(source));
    if (part.nodes == 0 || part.place >= part.nodes) fail("srun's helper sent a wrong ring");
    return part;
  } catch (const json::exception& error) {
    fail("srun's helper sent a wrong field: {}", error.what());
  }
}

namespace {

constexpr std::string_view kStates = "hnbs";  // of SourceState

unsigned bit(char state) {
  return 1U << kStates.find(state);
}

}  // namespace

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

}  // namespace lockstep::transfer
