// The nodes that put the same sources together: where each can be reached, what they say to each other at
// srun's rendezvous, and the exchange between them.
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

class Circle {
 public:
  /// Opens the exchange and learns where the others are. `rendezvous` outlives it. Throws Error where srun is
  /// lost.
  Circle(Rendezvous& rendezvous, const Exchange::Options& options, const std::string& node_name);

  std::uint32_t self() const { return self_; }
  Exchange& exchange() { return exchange_; }

  /// As Rendezvous::gather(), by node; nodes that have left, or failed, are not in it.
  std::map<std::uint32_t, nlohmann::json> gather(const std::string& round, nlohmann::json data);

  std::string name(std::uint32_t node) const;
  std::unique_ptr<Link> connect(std::uint32_t node) const;

 private:
  struct Place {
    std::string name;
    std::vector<std::string> hosts;
    int port = 0;
  };

  Rendezvous& rendezvous_;
  std::uint32_t self_;
  Exchange exchange_;
  std::map<std::uint32_t, Place> places_;
};

}  // namespace lockstep::transfer
