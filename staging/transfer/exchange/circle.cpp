#include "staging/transfer/exchange/circle.h"

#include "common/error.h"

namespace lockstep::transfer {

Circle::Circle(Rendezvous& rendezvous, const Exchange::Options& options, const std::string& node_name)
    : rendezvous_(rendezvous), self_(options.node_id), exchange_(options) {
  const nlohmann::json own{
      {"name", node_name}, {"hosts", {rendezvous.own_address(), node_name}}, {"port", exchange_.port()}};
  for (const auto& [node, said] : gather("places", own)) {
    try {
      places_[node] = Place{said.at("name"), said.at("hosts"), said.at("port")};
    } catch (const nlohmann::json::exception& error) {
      fail("node {} of the step runs another version of lockstep-stage ({})", node, error.what());
    }
  }
}

std::map<std::uint32_t, nlohmann::json> Circle::gather(const std::string& round, nlohmann::json data) {
  std::map<std::uint32_t, nlohmann::json> words;
  const nlohmann::json all = rendezvous_.gather(round, std::move(data));
  for (const auto& [node, said] : all.items()) {
    if (!said.is_null()) words.emplace(static_cast<std::uint32_t>(std::stoul(node)), said);
  }
  return words;
}

std::string Circle::name(std::uint32_t node) const {
  const auto place = places_.find(node);
  return place == places_.end() ? fmt::format("node {} of the step", node) : place->second.name;
}

std::unique_ptr<Link> Circle::connect(std::uint32_t node) const {
  const auto place = places_.find(node);
  if (place == places_.end()) throw PeerError("it has left");
  return exchange_.connect(place->second.hosts, place->second.port, node);
}

}  // namespace lockstep::transfer
