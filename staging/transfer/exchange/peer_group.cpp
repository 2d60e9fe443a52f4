#include "staging/transfer/exchange/peer_group.h"

#include "common/error.h"
#include "common/tool.h"

namespace lockstep::transfer {
namespace {

void check_releases(const std::map<std::uint32_t, nlohmann::json>& messages, PeerGroup& peers) {
  std::map<std::string, std::string> nodes;  // one of each release
  for (const auto& [node, message] : messages)
    nodes.try_emplace(message.value("release", "an unknown one"), message.value("name", peers.name(node)));
  if (nodes.size() < 2) return;
  std::string list;
  for (const auto& [release, node] : nodes) list += (list.empty() ? "" : ", ") + release + " on " + node;
  throw OtherRelease("the nodes run different releases of Lockstep (" + list +
                     "): each of them reads all data from the source");
}

}  // namespace

PeerGroup::PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, const std::string& node_name)
    : rendezvous_(rendezvous), self_(options.node_id), exchange_(options) {
  std::vector<std::string> hosts{rendezvous.own_address(), node_name};
  const std::string address = address_in(options.peer_networks);
  uses_peer_network_ = !address.empty();
  if (uses_peer_network_) hosts = {address};
  rendezvous_.set_address({{"name", node_name}, {"hosts", hosts}, {"port", exchange_.port()}});
  peers_[self_] = {node_name, {}, 0};
}

std::map<std::uint32_t, nlohmann::json> PeerGroup::hello(nlohmann::json data) {
  data["release"] = version();
  std::map<std::uint32_t, nlohmann::json> messages = gather("places", std::move(data));
  check_releases(messages, *this);
  return messages;
}

std::map<std::uint32_t, nlohmann::json> PeerGroup::gather(const std::string& round, nlohmann::json data) {
  std::map<std::uint32_t, nlohmann::json> messages;
  const nlohmann::json all = rendezvous_.gather(round, std::move(data));
  for (const auto& [node, message] : all.items()) {
    if (!message.is_null()) messages.emplace(static_cast<std::uint32_t>(std::stoul(node)), message);
  }
  return messages;
}

const PeerGroup::Peer& PeerGroup::find(std::uint32_t node) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = peers_.find(node); found != peers_.end()) return found->second;
  }
  const nlohmann::json told = rendezvous_.address_of(node);
  if (told.is_null()) throw PeerError("it has left the step");
  try {
    Peer peer{told.at("name"), told.at("hosts"), told.at("port")};
    const std::lock_guard lock(mutex_);
    return peers_.emplace(node, std::move(peer)).first->second;
  } catch (const nlohmann::json::exception& error) {
    fail("node {} of the step runs another version of lockstep-stage ({})", node, error.what());
  }
}

std::string PeerGroup::name(std::uint32_t node) {
  try {
    return find(node).name;
  } catch (const Error&) {
    return fmt::format("node {} of the step", node);
  }
}

std::unique_ptr<PeerLink> PeerGroup::connect(std::uint32_t node) {
  const Peer& peer = find(node);
  return exchange_.connect(peer.hosts, peer.port, node);
}

}  // namespace lockstep::transfer
