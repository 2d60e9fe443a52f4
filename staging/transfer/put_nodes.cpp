#include "staging/transfer/put_nodes.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "common/error.h"
#include "common/files.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "staging/rendezvous/rendezvous_socket.h"
#include "staging/transfer/exchange/circle.h"
#include "staging/transfer/hang_watch.h"

namespace lockstep::transfer {
namespace {

struct Place {
  std::string host;
  int port = 0;
};

Place place_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Place place{text.substr(0, colon), 0};
  if (colon != std::string::npos) {
    const std::string port = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), place.port);
    constexpr int kHighest = 65535;
    if (error != std::errc() || end != port.data() + port.size() || place.port < 0 || place.port > kHighest)
      fail_usage("--nodes: '{}' is no HOST:PORT", text);
  }
  if (place.host.empty()) fail_usage("--nodes: '{}' names no host", text);
  // [::1] as URLs write it
  if (place.host.starts_with('[') && place.host.ends_with(']'))
    place.host = place.host.substr(1, place.host.size() - 2);
  return place;
}

/// Where the nodes meet, on the first of them.
class Meeting {
 public:
  Meeting(int port, const NodesOptions& nodes) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("cannot make a pipe");
    open_.reset(ends[0]);
    end_.reset(ends[1]);
    RendezvousServer::Options options;
    options.key = nodes.key;
    options.wait = std::chrono::seconds(nodes.wait_seconds);
    options.drain = std::chrono::seconds(2);
    server_ = std::make_unique<RendezvousServer>(listen_on(port, port, port), options);
    thread_ = std::thread([this] { server_->run(open_); });
  }
  ~Meeting() {
    end_.reset();
    thread_.join();
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

 private:
  UniqueFd open_, end_;
  std::unique_ptr<RendezvousServer> server_;
  std::thread thread_;
};

/// Says once that the work is over, whichever thread finds out; the others wait, since saying it ends the
/// process.
class Stop {
 public:
  explicit Stop(std::function<void(const std::string&)> stop) : stop_(std::move(stop)) {}
  void operator()(const std::string& why) {
    if (stop_) std::call_once(once_, stop_, why);
  }

 private:
  std::function<void(const std::string&)> stop_;
  std::once_flag once_;
};

// The first node may start last.
std::unique_ptr<Rendezvous> meet(const Place& first, const Hello& hello, const NodesOptions& nodes,
                                 Stop& stop) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(nodes.wait_seconds);
  RendezvousAddress address{first.port, {first.host}, nodes.key};
  address.name = fmt::format("the first node's put ({})", nodes.nodes[0]);
  for (;;) {
    try {
      return std::make_unique<Rendezvous>(
          address, hello, [&stop](const std::string& lost) { stop(lost); },
          [&stop](const Verdict& verdict) { stop(verdict.why); });
    } catch (const Error&) {
      if (std::chrono::steady_clock::now() > until) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
}

}  // namespace

std::vector<PutResult> put_on_nodes(const std::vector<std::string>& sources, PutOptions options,
                                    const NodesOptions& nodes) {
  if (nodes.node_id >= nodes.nodes.size()) fail_usage("--node-id {}: not among --nodes", nodes.node_id);
  if (nodes.key.empty())
    fail_usage("nodes that put together need a key: LOCKSTEP_RENDEZVOUS_KEY or --key-file");
  std::vector<Place> places;
  for (const std::string& node : nodes.nodes) places.push_back(place_of(node));
  if (places[0].port == 0) places[0].port = kMeetingPort;
  std::unique_ptr<Meeting> meeting;
  if (nodes.node_id == 0) meeting = std::make_unique<Meeting>(places[0].port, nodes);
  Hello hello;
  hello.step = "put";
  hello.node = nodes.nodes[nodes.node_id];
  hello.node_id = nodes.node_id;
  hello.nodes = static_cast<std::uint32_t>(nodes.nodes.size());
  for (const std::string& node : nodes.nodes) hello.node_list += (hello.node_list.empty() ? "" : ",") + node;
  Stop stop(nodes.stop);
  const std::unique_ptr<Rendezvous> rendezvous = meet(places[0], hello, nodes, stop);
  const auto agree = [&](const Verdict& here) {
    try {
      return rendezvous->agree(here);
    } catch (const Error& lost) {
      return Verdict{false, lost.what()};
    }
  };
  const bool given = nodes.source_patience.count() > 0;
  HangWatch watch(
      given ? nodes.source_patience : HangWatch::patience(nodes.nodes.size()),
      [&](HangWatch::Where, const std::string& why) {
        stop(agree({false, why}).why);
      },
      fmt::format("the local disk of {} ({})", places[nodes.node_id].host, options.cache_dir.string()));
  options.watch = &watch;
  Verdict here;
  std::vector<PutResult> results;
  // The exchange stays open until all have agreed.
  std::unique_ptr<Circle> circle;
  try {
    Exchange::Options exchange;
    exchange.key = nodes.key;
    exchange.step = "0.put";
    exchange.node_id = nodes.node_id;
    exchange.first_port = exchange.last_port = nodes.node_id == 0 ? 0 : places[nodes.node_id].port;
    exchange.chunk_bytes = options.chunk_bytes;
    exchange.patience = nodes.peer_patience;
    circle = std::make_unique<Circle>(*rendezvous, exchange, places[nodes.node_id].host);
    options.circle = circle.get();
    results = put(sources, options);
  } catch (const std::exception& error) {
    here = {false, error.what()};
  }
  watch.wait_for_telling();
  const Verdict all = agree(here);
  if (all.good) return results;
  stop(all.why);
  fail("{}", all.why);
}

}  // namespace lockstep::transfer
