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

PeerGroup::PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, std::vector<std::string> names)
    : rendezvous_(rendezvous),
      self_(options.node_id),
      step_(options.step),
      exchange_(options),
      names_(std::move(names)) {
  std::vector<std::string> hosts{rendezvous.own_address(), name(self_)};
  const std::string address = address_in(options.peer_networks);
  uses_peer_network_ = !address.empty();
  if (uses_peer_network_) hosts = {address};
  rendezvous_.set_address({{"name", name(self_)}, {"hosts", hosts}, {"port", exchange_.port()}});
}

std::map<std::uint32_t, nlohmann::json> PeerGroup::hello(nlohmann::json data) {
  data["release"] = version();
  // All releases call the round by this name.
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

std::string PeerGroup::name(std::uint32_t node) const {
  return node < names_.size() ? names_[node] : fmt::format("node {} of the step", node);
}

}  // namespace lockstep::transfer
