#include "staging/rendezvous/ring_states.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

RingPart ring_part_from(const json& message) {
  try {
    RingPart part;
    part.nodes = message.at("nodes");
    part.place = message.at("place");
    part.predecessor.node = message.at("predecessor");
    part.predecessor.name = message.at("name");
    part.predecessor.hosts = message.at("hosts").get<std::vector<std::string>>();
    part.predecessor.port = message.at("port");
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
  for (std::size_t s = 0; s < states.size(); ++s) {
    switch (static_cast<SourceState>(states[s])) {
      case SourceState::has:
        seen_[s].has = true;
        break;
      case SourceState::needs:
        seen_[s].needs = true;
        break;
      case SourceState::busy:
        seen_[s].busy = true;
        break;
      case SourceState::staged:
        seen_[s].staged = true;
        break;
      default:
        fail("a node of the step sent an unknown state of a source");
    }
  }
}

std::vector<SourcePart> RingStates::parts(bool lost) const {
  std::vector<SourcePart> parts;
  for (const Seen& seen : seen_) {
    if (!seen.needs && !seen.busy) {
      parts.push_back(SourcePart::none);
    } else if (seen.staged) {
      parts.push_back(SourcePart::unsure);
    } else if (!seen.needs) {
      parts.push_back(SourcePart::busy);
    } else {
      parts.push_back(seen.has && !lost ? SourcePart::held : SourcePart::read);
    }
  }
  return parts;
}

}  // namespace lockstep::transfer
