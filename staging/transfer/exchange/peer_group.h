// The nodes that put the same sources together: the rounds at the rendezvous by which they agree, and the exchange of chunks
// between them.
//
// Threads: gather() one at a time; the rest from any.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/exchange/exchange.h"

namespace lockstep::transfer {

/// Nodes of the step run different releases, which do not cooperate. All of them see that, and each can read the source
/// alone.
class OtherRelease : public Error {
 public:
  using Error::Error;
};

class PeerGroup {
 public:
  /// Opens the exchange and tells the rendezvous where it is: at this node's address in `options.peer_networks`, or else
  /// where srun sees this node. `names` has the name of each node of the step, for messages and as this node's address.
  /// `rendezvous` must outlive this object. Throws Error if the rendezvous is lost.
  PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, std::vector<std::string> names);

  std::uint32_t self() const { return self_; }
  bool uses_peer_network() const { return uses_peer_network_; }
  Exchange& exchange() { return exchange_; }
  Rendezvous& rendezvous() { return rendezvous_; }

  /// As Rendezvous::gather(), by node, without the nodes that have left or failed.
  std::map<std::uint32_t, nlohmann::json> gather(const std::string& round, nlohmann::json data);

  /// The first round: adds the release of this node to `data`, and compares those of all nodes. Throws OtherRelease as
  /// described above.
  std::map<std::uint32_t, nlohmann::json> hello(nlohmann::json data);

  std::string name(std::uint32_t node) const;
  /// "JOB.STEP"
  const std::string& step() const { return step_; }

 private:
  Rendezvous& rendezvous_;
  std::uint32_t self_;
  std::string step_;
  Exchange exchange_;
  bool uses_peer_network_ = false;
  std::vector<std::string> names_;
};

}  // namespace lockstep::transfer
