#include "staging/transfer/exchange/peer_group.h"

#include <set>

#include "common/error.h"
#include "common/tool.h"

namespace lockstep::transfer {
namespace {

void check_releases(const std::map<std::uint32_t, nlohmann::json>& messages) {
  std::map<std::string, std::string> nodes;  // one of each release
  std::set<int> protocols;
  for (const auto& [node, message] : messages) {
    protocols.insert(message.value("protocol", 1));  // releases before 2 do not say
    nodes.try_emplace(message.value("release", "an earlier one"),
                      message.value("name", std::to_string(node)));
  }
  if (protocols.size() < 2) return;
  std::string list;
  for (const auto& [release, node] : nodes) list += (list.empty() ? "" : ", ") + release + " on " + node;
  throw OtherRelease("the nodes run different releases of Lockstep (" + list +
                     "): each of them reads all data from the source");
}

}  // namespace

PeerGroup::PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, const std::string& node_name)
    : rendezvous_(rendezvous), self_(options.node_id), exchange_(options) {
  const nlohmann::json own{{"name", node_name},
                           {"hosts", {rendezvous.own_address(), node_name}},
                           {"port", exchange_.port()},
                           {"protocol", kExchangeProtocol},
                           {"release", version()}};
  const std::map<std::uint32_t, nlohmann::json> messages = gather("places", own);
  check_releases(messages);
  for (const auto& [node, message] : messages) {
    try {
      peers_[node] = Peer{message.at("name"), message.at("hosts"), message.at("port")};
    } catch (const nlohmann::json::exception& error) {
      fail("node {} of the step runs another version of lockstep-stage ({})", node, error.what());
    }
  }
}

std::map<std::uint32_t, nlohmann::json> PeerGroup::gather(const std::string& round, nlohmann::json data) {
  std::map<std::uint32_t, nlohmann::json> messages;
  const nlohmann::json all = rendezvous_.gather(round, std::move(data));
  for (const auto& [node, message] : all.items()) {
    if (!message.is_null()) messages.emplace(static_cast<std::uint32_t>(std::stoul(node)), message);
  }
  return messages;
}

std::string PeerGroup::name(std::uint32_t node) const {
  const auto peer = peers_.find(node);
  return peer == peers_.end() ? fmt::format("node {} of the step", node) : peer->second.name;
}

std::unique_ptr<PeerLink> PeerGroup::connect(std::uint32_t node) const {
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) throw PeerError("it has left the step");
  return exchange_.connect(peer->second.hosts, peer->second.port, node);
}

}  // namespace lockstep::transfer
