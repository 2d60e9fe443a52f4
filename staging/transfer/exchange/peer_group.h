// The nodes that put the same sources together: the address of each, the rounds at the rendezvous through
// which they agree, and the exchange of chunks between them.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/exchange/exchange.h"

namespace lockstep::transfer {

/// Of what the nodes of a step send each other: one more at each change that an earlier release does not understand.
inline constexpr int kExchangeProtocol = 2;

/// Nodes of the step run releases that cannot cooperate. All of them see that, and each can read the source alone.
class OtherRelease : public Error {
 public:
  using Error::Error;
};

class PeerGroup {
 public:
  /// Opens the exchange and learns the addresses of the other nodes. `rendezvous` must outlive this object.
  /// Throws Error if the rendezvous is lost, OtherRelease as described above.
  PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, const std::string& node_name);

  std::uint32_t self() const { return self_; }
  Exchange& exchange() { return exchange_; }

  /// As Rendezvous::gather(), by node, without the nodes that have left or failed.
  std::map<std::uint32_t, nlohmann::json> gather(const std::string& round, nlohmann::json data);

  std::string name(std::uint32_t node) const;
  std::unique_ptr<PeerLink> connect(std::uint32_t node) const;

 private:
  struct Peer {
    std::string name;
    std::vector<std::string> hosts;
    int port = 0;
  };

  Rendezvous& rendezvous_;
  std::uint32_t self_;
  Exchange exchange_;
  std::map<std::uint32_t, Peer> peers_;
};

}  // namespace lockstep::transfer
