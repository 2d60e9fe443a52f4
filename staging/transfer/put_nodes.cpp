#include "staging/transfer/put_nodes.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/descriptors.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/sockets.h"
#include "common/thread.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/supervisor.h"

namespace lockstep::transfer {
namespace {

struct NodeAddress {
  std::string host;
  int port = 0;
};

NodeAddress parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  NodeAddress address{text.substr(0, colon), 0};
  if (colon != std::string::npos) {
    const auto port = to_number<std::uint16_t>(text.substr(colon + 1));
    if (!port) fail_usage("--nodes: '{}' is not HOST:PORT", text);
    address.port = *port;
  }
  if (address.host.empty()) fail_usage("--nodes: '{}' names no host", text);
  // [::1], as in URLs
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  return address;
}

/// The rendezvous of all nodes, on the first of them.
class FirstNodeServer {
 public:
  FirstNodeServer(int port, const NodesOptions& nodes) {
    RendezvousServer::Options options;
    options.key = nodes.key;
    options.join_timeout = std::chrono::seconds(nodes.wait_seconds);
    options.drain_timeout = std::chrono::seconds(2);
    server_ = std::make_unique<RendezvousServer>(listen_on(port, port, port), options);
    thread_ = new_thread([this] { server_->run(alive_.read_end); });
  }
  ~FirstNodeServer() {
    alive_.write_end.reset();
    thread_.join();
  }
  FirstNodeServer(const FirstNodeServer&) = delete;
  FirstNodeServer& operator=(const FirstNodeServer&) = delete;

 private:
  Pipe alive_;
  std::unique_ptr<RendezvousServer> server_;
  std::thread thread_;
};

using Stop = std::function<void(const std::string& why)>;

RendezvousAddress address_of(const NodeAddress& first, const NodesOptions& nodes) {
  RendezvousAddress address{first.port, {first.host}, nodes.key};
  address.name = fmt::format("the first node's put ({})", nodes.nodes[0]);
  address.prints_reasons = false;
  return address;
}

// Tries again for a while, because the first node may start last.
std::unique_ptr<Rendezvous> meet(const RendezvousAddress& rendezvous, const Hello& hello,
                                 const NodesOptions& nodes, const Stop& stop) {
  RunningTime time;
  std::chrono::milliseconds waited{0};
  for (;;) {
    try {
      return std::make_unique<Rendezvous>(rendezvous, hello, stop);
    } catch (const Error&) {
      if ((waited += time.tick()) > std::chrono::seconds(nodes.wait_seconds)) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
}

// Tells the other nodes, for a child that is stuck, why this node fails. Returns the line to print.
std::string report_stuck(const RendezvousAddress& address, Hello hello, const std::string& why) {
  hello.replaces_process = true;
  try {
    return Rendezvous(address, hello, [](const std::string&) {}).agree({false, why}).why;
  } catch (const Error&) {
    return why;  // the others have ended already
  }
}

}  // namespace

std::vector<PutResult> put_on_nodes(const std::vector<std::string>& sources, PutOptions options,
                                    const NodesOptions& nodes) {
  if (nodes.node_id >= nodes.nodes.size())
    fail_usage("--node-id {}: must be below the number of --nodes ({})", nodes.node_id, nodes.nodes.size());
  if (nodes.key.empty())
    fail_usage("several nodes need a common key: set LOCKSTEP_RENDEZVOUS_KEY or --key-file");
  std::vector<NodeAddress> addresses;
  for (const std::string& node : nodes.nodes) addresses.push_back(parse_address(node));
  if (addresses[0].port == 0) addresses[0].port = kRendezvousPort;
  Hello hello;
  hello.step = "put";
  hello.node = nodes.nodes[nodes.node_id];
  hello.node_id = nodes.node_id;
  hello.nodes = static_cast<std::uint32_t>(nodes.nodes.size());
  for (const std::string& node : nodes.nodes) hello.node_list += (hello.node_list.empty() ? "" : ",") + node;
  const RendezvousAddress address = address_of(addresses[0], nodes);
  // Only the first thread that has a reason ends the process; the others wait.
  std::once_flag stopped;
  const Stop stop = [&](const std::string& why) {
    if (nodes.stop) std::call_once(stopped, nodes.stop, why);
  };
  const std::string disk =
      fmt::format("the local disk of {} ({})", addresses[nodes.node_id].host, options.cache_dir.string());
  const std::optional<ChildEnd> end = run_supervised(
      {.call_timeout =
           nodes.call_timeout.count() > 0 ? nodes.call_timeout : default_call_timeout(nodes.nodes.size()),
       .disk_folders = {options.cache_dir, options.shared},
       .disk_name = disk});
  if (end) {
    if (end->stuck.empty()) ::_exit(end->code);
    const std::string why = report_stuck(address, hello, end->stuck);
    end_child(end->pid);
    stop(why);
    ::_exit(1);
  }
  std::unique_ptr<FirstNodeServer> server;
  if (nodes.node_id == 0) server = std::make_unique<FirstNodeServer>(addresses[0].port, nodes);
  const std::unique_ptr<Rendezvous> rendezvous = meet(address, hello, nodes, stop);
  const auto agree = [&](const Verdict& outcome) {
    try {
      return rendezvous->agree(outcome);
    } catch (const Error& lost) {
      return Verdict{false, lost.what()};
    }
  };
  Verdict outcome;
  std::vector<PutResult> results;
  // The exchange stays open until all nodes have agreed.
  std::unique_ptr<PeerGroup> peers;
  try {
    Exchange::Options exchange;
    exchange.key = nodes.key;
    exchange.step = hello.step_name();
    exchange.node_id = nodes.node_id;
    exchange.first_port = exchange.last_port = nodes.node_id == 0 ? 0 : addresses[nodes.node_id].port;
    exchange.chunk_bytes = options.sizes.chunk_bytes;
    exchange.timeouts = nodes.peer_timeouts;
    std::vector<std::string> names;
    for (const NodeAddress& node : addresses) names.push_back(node.host);
    peers = std::make_unique<PeerGroup>(*rendezvous, exchange, std::move(names));
    options.peers = peers.get();
    results = put(sources, options);
  } catch (const std::exception& error) {
    outcome = {false, error.what()};
  }
  const Verdict all = agree(outcome);
  if (all.good) return results;
  stop(all.why);
  fail("{}", all.why);
}

}  // namespace lockstep::transfer
