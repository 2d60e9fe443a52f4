#include "staging/transfer/exchange/peer_group.h"

#include "common/error.h"

namespace lockstep::transfer {

PeerGroup::PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, const std::string& node_name)
    : rendezvous_(rendezvous), self_(options.node_id), exchange_(options) {
  const nlohmann::json own{
      {"name", node_name}, {"hosts", {rendezvous.own_address(), node_name}}, {"port", exchange_.port()}};
  for (const auto& [node, message] : gather("places", own)) {
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
