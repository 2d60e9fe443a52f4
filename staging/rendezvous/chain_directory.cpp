#include "staging/rendezvous/chain_directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using nlohmann::json;

// As [first, last, first, last, ...]: most chains have all sources.
json ranges_of(const std::vector<std::size_t>& sorted) {
  json ranges = json::array();
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i] != sorted[i - 1] + 1) {
      ranges.push_back(sorted[i]);
      ranges.push_back(sorted[i]);
    }
    ranges.back() = sorted[i];
  }
  return ranges;
}

std::vector<std::size_t> numbers_of(const json& ranges) {
  constexpr std::size_t kMaxSources = std::size_t{1} << 20U;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i + 1 < ranges.size(); i += 2) {
    const std::size_t last = ranges[i + 1];
    if (last >= kMaxSources) fail("srun's helper named a source that does not exist");
    for (std::size_t number = ranges[i]; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

json node_json(const std::optional<ChainNode>& node) {
  return node ? json{node->node, node->place} : json();
}

std::optional<ChainNode> node_from(const json& message) {
  if (message.is_null()) return {};
  return ChainNode{message.at(0), message.at(1)};
}

template <typename Read>
auto reading(const Read& read) {
  try {
    return read();
  } catch (const json::exception& error) {
    fail("srun's helper sent a wrong field: {}", error.what());
  }
}

}  // namespace

json to_json(const std::vector<ChainPart>& parts) {
  json list = json::array();
  for (const ChainPart& part : parts) {
    std::string held;
    for (const bool is_held : part.held) held += is_held ? '1' : '0';
    list.push_back({{"chain", part.chain},
                    {"sources", ranges_of(part.sources)},
                    {"held", held},
                    {"nodes", part.nodes},
                    {"place", part.place},
                    {"lists", part.lists},
                    {"predecessor", node_json(part.predecessor)}});
  }
  return list;
}

std::vector<ChainPart> chain_parts_from(const json& message) {
  return reading([&] {
    std::vector<ChainPart> parts;
    for (const json& part : message) {
      parts.push_back({.chain = part.at("chain"),
                       .sources = numbers_of(part.at("sources")),
                       .held = {},
                       .nodes = part.at("nodes"),
                       .place = part.at("place"),
                       .lists = part.at("lists"),
                       .predecessor = node_from(part.at("predecessor"))});
      for (const char held : part.at("held").get<std::string>()) parts.back().held.push_back(held == '1');
      if (parts.back().held.size() != parts.back().sources.size()) fail("srun's helper sent a wrong chain");
    }
    return parts;
  });
}

json to_json(const NextPredecessor& next) {
  return {{"predecessor", node_json(next.predecessor)},
          {"lists", next.lists},
          {"without_holder", ranges_of(next.without_holder)}};
}

NextPredecessor next_predecessor_from(const json& message) {
  return reading([&] {
    return NextPredecessor{.predecessor = node_from(message.at("predecessor")),
                           .lists = message.at("lists"),
                           .without_holder = numbers_of(message.at("without_holder"))};
  });
}

ChainDirectory::ChainDirectory(const std::map<std::uint32_t, std::string>& states) {
  if (states.empty()) return;
  const std::size_t sources = states.begin()->second.size();
  for (const auto& [node, text] : states) {
    if (text.size() != sources) fail("the nodes of the step were given different sources");
  }
  std::map<std::vector<std::uint32_t>, std::size_t> chain_of;
  for (std::size_t source = 0; source < sources; ++source) {
    std::vector<std::uint32_t> nodes;
    std::vector<std::uint32_t> holders;
    bool needed = false;
    for (const auto& [node, text] : states) {
      const auto state = static_cast<SourceState>(text[source]);
      if (state == SourceState::has) holders.push_back(node);
      if (state != SourceState::busy) nodes.push_back(node);
      needed = needed || state == SourceState::needs;
    }
    if (!needed) continue;
    const auto [at, fresh] = chain_of.try_emplace(nodes, chains_.size());
    if (fresh) chains_.push_back({.nodes = std::move(nodes), .sources = {}, .holders = {}});
    chains_[at->second].sources.push_back(source);
    chains_[at->second].holders.push_back(std::move(holders));
  }
}

std::optional<ChainNode> ChainDirectory::predecessor(
    const Chain& chain, std::uint32_t node, const std::function<bool(std::uint32_t)>& is_lost) const {
  const std::size_t count = chain.nodes.size();
  const auto self = static_cast<std::size_t>(std::lower_bound(chain.nodes.begin(), chain.nodes.end(), node) -
                                             chain.nodes.begin());
  for (std::size_t back = 1; back <= count; ++back) {
    const std::size_t place = (self + count - back) % count;
    if (chain.nodes[place] != node && !is_lost(chain.nodes[place]))
      return ChainNode{chain.nodes[place], static_cast<std::uint32_t>(place)};
  }
  return {};
}

std::vector<ChainPart> ChainDirectory::parts_of(std::uint32_t node) const {
  std::vector<ChainPart> parts;
  for (std::size_t c = 0; c < chains_.size(); ++c) {
    const Chain& chain = chains_[c];
    const auto found = std::lower_bound(chain.nodes.begin(), chain.nodes.end(), node);
    const auto self = found != chain.nodes.end() && *found == node ? found : chain.nodes.end();
    ChainPart& part = parts.emplace_back();
    part.chain = c;
    part.sources = chain.sources;
    for (const auto& holders : chain.holders) part.held.push_back(!holders.empty());
    part.nodes = static_cast<std::uint32_t>(chain.nodes.size());
    part.place = static_cast<std::uint32_t>(self - chain.nodes.begin());
    part.lists = part.place == 0;
    part.predecessor = predecessor(chain, node, [](std::uint32_t) { return false; });
  }
  return parts;
}

NextPredecessor ChainDirectory::next(std::size_t chain, std::uint32_t node,
                                     const std::function<bool(std::uint32_t)>& is_lost) const {
  if (chain >= chains_.size()) fail("a node asked for a chain that does not exist");
  const Chain& asked = chains_[chain];
  NextPredecessor next;
  next.predecessor = predecessor(asked, node, is_lost);
  const auto first = std::find_if_not(asked.nodes.begin(), asked.nodes.end(), is_lost);
  next.lists = first != asked.nodes.end() && *first == node;
  for (std::size_t i = 0; i < asked.sources.size(); ++i) {
    const auto& holders = asked.holders[i];
    if (!holders.empty() && std::all_of(holders.begin(), holders.end(), is_lost))
      next.without_holder.push_back(asked.sources[i]);
  }
  return next;
}

}  // namespace lockstep::transfer
