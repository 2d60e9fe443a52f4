#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/leaf/subnet.h"
#include "common/sockets.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {

void check_peer_network(const Config& config, Report& report) {
  if (config.peer_networks.empty()) return;
  std::vector<Subnet> networks;
  for (const std::string& text : config.peer_networks) networks.push_back(Subnet::parse(text).value());
  const std::string names = fmt::format("{}", fmt::join(config.peer_networks, ", "));
  if (const std::string address = address_in(networks); !address.empty()) {
    report.ok("peer_network", fmt::format("other nodes reach this one at {}, in {}", address, names));
  } else {
    report.error("peer_network", fmt::format("no running interface has an address in {}", names),
                 "Staged data passes this node over the network that leads to srun, which may be slower.",
                 "start the interface (ip -brief address), or correct peer_network in lockstep.conf");
  }
}

}  // namespace lockstep::doctor
