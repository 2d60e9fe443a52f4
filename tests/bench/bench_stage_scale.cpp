// Passes data along a chain of many nodes, as staging does for one source: the real exchange and rendezvous, with all
// nodes in one process and small chunks in memory. Counts who sends and reads what, and then computes how long the same
// messages take with real chunks on a given network: a link sends what is available first. bench_stage --simulate starts
// this program.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/tool.h"
#include "tests/unit/staging/transfer/exchange/chain_world.h"

namespace lockstep::bench {
namespace {

using transfer::ChainEnd;
using transfer::ChainHop;
using transfer::ChainOptions;

struct Settings {
  std::uint32_t nodes = 64;
  std::size_t sources = 1;
  std::string holders, lost;
  std::vector<double> bytes{100e9};  ///< of the data that is played: one line for each
  double link = 12.5e9;              ///< bytes a second that a node sends
  double source = 100e9;             ///< bytes a second that all nodes together read
  double latency = 50e-6;            ///< of a message, in seconds
  std::uint32_t chunk_bytes = 64;    ///< of the chunks that are really sent
};

/// Plays the messages of a run. Every node has one link, and sends what became available first.
class Playback {
 public:
  Playback(const Settings& settings, const ChainEnd& end, double bytes, double hop)
      : end_(end),
        chunk_seconds_(bytes / static_cast<double>(end.chunks) / settings.link),
        source_seconds_(bytes / static_cast<double>(end.chunks) / settings.source),
        delay_(settings.latency + hop),
        nodes_(settings.nodes) {}

  double seconds() {
    for (std::uint32_t node = 0; node < end_.hops.size(); ++node) {
      nodes_[node].receivers.resize(end_.chunks);
    }
    for (std::uint32_t node = 0; node < end_.hops.size(); ++node) {
      for (const ChainHop& hop : end_.hops[node]) {
        if (hop.from == node) {
          nodes_[node].reads.push_back(hop.chunk);
        } else {
          nodes_[hop.from].receivers[hop.chunk].push_back(node);
        }
      }
    }
    // The source serves the nodes in turn.
    double at = 0;
    for (bool more = true; more;) {
      more = false;
      for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
        Node& reader = nodes_[node];
        if (reader.reads.empty()) continue;
        more = true;
        arrive(std::max(at += source_seconds_, reader.read_until += chunk_seconds_), node,
               reader.reads.front());
        reader.reads.pop_front();
      }
    }
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
      for (const std::size_t chunk : end_.initial[node]) arrive(0, node, chunk);
    }
    double last = 0;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      Node& node = nodes_[event.node];
      if (event.at > 0) last = std::max(last, event.at);
      for (const std::uint32_t receiver : node.receivers[event.chunk]) {
        node.sends_until = std::max(node.sends_until, event.at) + chunk_seconds_;
        arrive(node.sends_until + delay_, receiver, event.chunk);
      }
    }
    return last;
  }

 private:
  struct Node {
    std::vector<std::vector<std::uint32_t>> receivers;  ///< by chunk
    std::deque<std::size_t> reads;
    double read_until = 0, sends_until = 0;
  };
  struct Event {
    double at;
    std::uint64_t order;
    std::uint32_t node;
    std::size_t chunk;
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  void arrive(double at, std::uint32_t node, std::size_t chunk) { events_.push({at, order_++, node, chunk}); }

  const ChainEnd& end_;
  double chunk_seconds_, source_seconds_, delay_;
  std::vector<Node> nodes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
};

ChainOptions chain_of(const Settings& settings) {
  ChainOptions options;
  options.nodes = settings.nodes;
  options.chunk_bytes = settings.chunk_bytes;
  // Eight chunks for each node.
  const std::size_t files = std::max<std::size_t>(settings.nodes, settings.sources);
  const std::size_t chunks = std::max<std::size_t>(1, std::size_t{8} * settings.nodes / files);
  options.files.assign(files, chunks * settings.chunk_bytes);
  options.sources = settings.sources;
  // Thousands of threads share the processors of one machine, and would mostly look.
  options.timeouts = {.silence = std::chrono::minutes(5),
                      .chunk = std::chrono::minutes(10),
                      .look = std::chrono::milliseconds(250)};
  options.join_timeout = std::chrono::minutes(10);
  if (settings.holders == "alternating") {
    for (std::uint32_t node = 0; node < settings.nodes; node += 2) options.holders.insert(node);
  } else if (settings.holders == "rotating") {
    const std::uint32_t nodes = settings.nodes;
    options.holds = [nodes](std::uint32_t node, std::size_t source) { return source % nodes == node; };
  } else if (!settings.holders.empty()) {
    for (std::size_t at = 0; at < settings.holders.size();) {
      const std::size_t end = std::min(settings.holders.find(',', at), settings.holders.size());
      options.holders.insert(static_cast<std::uint32_t>(std::stoul(settings.holders.substr(at, end - at))));
      at = end + 1;
    }
  }
  if (!settings.lost.empty()) {
    const std::size_t at = settings.lost.find('@');
    if (at == std::string::npos) fail_usage("--lost '{}' must be NODE@FRACTION", settings.lost);
    options.lost = static_cast<std::uint32_t>(std::stoul(settings.lost.substr(0, at)));
    options.lost_at = std::stod(settings.lost.substr(at + 1));
  }
  if ((options.lost && *options.lost >= settings.nodes) ||
      (!options.holders.empty() && *options.holders.rbegin() >= settings.nodes))
    fail_usage("--holders and --lost name nodes from 0 to {}", settings.nodes - 1);
  return options;
}

std::string name_of(const Settings& settings) {
  std::string name = settings.holders.empty() ? "cold" : "held by " + settings.holders;
  if (settings.sources > 1) name += fmt::format(", {} sources", settings.sources);
  if (!settings.lost.empty()) name += ", lost " + settings.lost;
  return name;
}

void run(const Settings& settings) {
  const ChainOptions options = chain_of(settings);
  const ChainEnd end = transfer::run_chain(options);
  if (!end.complete) fail("a node did not get all data");
  std::size_t hops = 0;
  for (const auto& node : end.hops) hops += node.size();
  const double hop = end.cpu_seconds / static_cast<double>(std::max<std::size_t>(hops, 1));
  const double data = static_cast<double>(end.chunks) * settings.chunk_bytes;
  const bool held = !options.holders.empty() || options.holds;
  for (const double bytes : settings.bytes) {
    const double seconds = Playback(settings, end, bytes, hop).seconds();
    const double bound = bytes / (held ? settings.link : std::min(settings.link, settings.source));
    Tool::print(
        {{"bench", "stage_scale"},
         {"nodes", settings.nodes},
         {"case", name_of(settings)},
         {"holders", options.holds ? settings.nodes : options.holders.size()},
         {"sources", settings.sources},
         {"bytes", bytes},
         {"link_bandwidth", settings.link},
         {"source_bandwidth", settings.source},
         {"latency", settings.latency},
         {"hop_seconds", hop},
         {"seconds", seconds},
         {"bound_ratio", seconds / bound},
         {"sent_max_ratio", static_cast<double>(end.max_sent()) / data},
         {"source_ratio", static_cast<double>(end.all_read()) / data},
         {"opens", end.opens},
         {"rounds", end.rounds},
         {"rendezvous_bytes", end.rendezvous_bytes},
         {"rendezvous_share", static_cast<double>(end.rendezvous_bytes) /
                                  (128.0 * settings.nodes * static_cast<double>(settings.sources + 8))},
         {"helper_seconds", end.helper_seconds},
         {"connections_max", end.connections},
         {"threads_max", end.threads}});
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;
  bench::Settings settings;
  CLI::App app("Simulates staging on many nodes.");
  app.add_option("--nodes", settings.nodes)->check(CLI::Range(2, 65536));
  app.add_option("--holders", settings.holders);
  app.add_option("--sources", settings.sources)->check(CLI::Range(1, 65536));
  app.add_option("--lost", settings.lost);
  app.add_option("--bytes", settings.bytes)->delimiter(',');
  app.add_option("--bandwidth", settings.link);
  app.add_option("--source-bandwidth", settings.source);
  app.add_option("--latency", settings.latency);
  CLI11_PARSE(app, argc, argv);
  try {
    bench::run(settings);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_stage_scale: {}\n", error.what());
    return 1;
  }
}
