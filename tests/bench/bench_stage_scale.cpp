// Plays the ring of many nodes (tests/simulation/ring_world.h) with the rates of a given network, and holds its rounds at a
// real rendezvous with as many real connections. bench_stage --simulate starts this program.

#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/sockets.h"
#include "common/thread.h"
#include "common/tool.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "tests/simulation/ring_world.h"

namespace lockstep::bench {
namespace {

using simulation::WorldEnd;
using simulation::WorldOptions;

constexpr double kChunkBytes = 4 << 20;  // in the product; fewer bytes are divided into smaller ones

struct Settings {
  std::uint32_t nodes = 64;
  std::size_t sources = 1;
  std::string holders, lost;
  std::vector<double> bytes{100e9};  ///< of the data that is played: one line for each
  double link = 12.5e9;              ///< bytes a second that a node sends
  double source = 100e9;             ///< bytes a second that all nodes together read
  double reader = 0;                 ///< that one node reads; 0: as fast as its link
  double latency = 50e-6;            ///< of a message, in seconds
};

/// What the rounds of a ring cost.
struct RoundsCost {
  std::size_t rounds = 0;
  std::uint64_t bytes = 0;  ///< sent and received by all nodes
  double helper_seconds = 0;
};

double cpu_seconds(std::thread& thread) {
  clockid_t clock{};
  timespec used{};
  if (::pthread_getcpuclockid(thread.native_handle(), &clock) != 0 || ::clock_gettime(clock, &used) != 0)
    fail("cannot read the processor time of a thread");
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// The rounds of one ring (cooperative_put.cpp), with a thread for each node.
RoundsCost hold_rounds(const Settings& settings) {
  constexpr std::chrono::minutes kLong{10};
  int port = 0;
  Pipe alive;
  transfer::RendezvousServer::Options options;
  options.key = "key";
  options.join_timeout = options.silence_timeout = kLong;
  transfer::RendezvousServer server(listen_on(0, 0, port), options);
  std::thread helper = new_thread([&] { server.run(alive.read_end); });
  RoundsCost cost;
  std::mutex mutex;
  std::vector<std::thread> nodes;
  for (std::uint32_t node = 0; node < settings.nodes; ++node) {
    nodes.push_back(new_thread([&, node] {
      const transfer::Hello hello{1, "0", fmt::format("n{}", node), node, settings.nodes, "", ""};
      transfer::Rendezvous rendezvous({port, {"127.0.0.1"}, "key", kLong}, hello, [](const std::string&) {});
      rendezvous.set_address({{"name", hello.node}, {"hosts", {"127.0.0.1", hello.node}}, {"port", 1}});
      nlohmann::json data{{"release", version()}, {"at_once", 1U << 16U}};
      const nlohmann::json identity{std::string(32, 'a'), true, std::string(32, 'b')};
      if (node == 0) data["sources"] = std::vector<nlohmann::json>(settings.sources, identity);
      rendezvous.gather("hello", std::move(data));
      const char state = static_cast<char>(transfer::SourceState::needs);
      rendezvous.states(1, std::string(settings.sources, state));
      rendezvous.contents(1, std::string(32, 'c'), false);
      const std::uint64_t bytes = rendezvous.bytes();
      rendezvous.agree({});
      const std::lock_guard lock(mutex);
      cost.bytes += bytes;
    }));
  }
  for (std::thread& node : nodes) node.join();
  cost.rounds = 3;
  cost.helper_seconds = cpu_seconds(helper);
  alive.write_end.reset();
  helper.join();
  return cost;
}

WorldOptions ring_of(const Settings& settings) {
  WorldOptions options;
  options.faults = false;
  options.nodes = settings.nodes;
  options.sources = settings.sources;
  options.link = settings.link;
  options.reader = settings.reader > 0 ? settings.reader : settings.link;
  options.source = settings.source;
  options.latency = settings.latency;
  options.disk = 1e15;
  options.prepare = 0;
  options.list_bytes = 1e5;
  if (settings.holders == "alternating") {
    for (std::uint32_t node = 0; node < settings.nodes; node += 2) options.holders.push_back(node);
  } else if (settings.holders == "rotating") {
    options.rotating = true;
  } else {
    for (std::size_t at = 0; at < settings.holders.size();) {
      const std::size_t end = std::min(settings.holders.find(',', at), settings.holders.size());
      options.holders.push_back(
          static_cast<std::uint32_t>(std::stoul(settings.holders.substr(at, end - at))));
      at = end + 1;
    }
  }
  if (!settings.lost.empty()) {
    const std::size_t at = settings.lost.find('@');
    if (at == std::string::npos) fail_usage("--lost '{}' must be NODE@FRACTION", settings.lost);
    options.killed = static_cast<std::uint32_t>(std::stoul(settings.lost.substr(0, at)));
    options.killed_at = std::stod(settings.lost.substr(at + 1));
  }
  if (options.killed.value_or(0) >= settings.nodes ||
      std::any_of(options.holders.begin(), options.holders.end(),
                  [&](std::uint32_t node) { return node >= settings.nodes; }))
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
  WorldOptions options = ring_of(settings);
  const RoundsCost cost = hold_rounds(settings);
  const bool held = !options.holders.empty() || options.rotating;
  for (const double bytes : settings.bytes) {
    const auto chunks = static_cast<std::size_t>(bytes / kChunkBytes);
    options.chunks = std::max({chunks, std::size_t{8} * settings.nodes, settings.sources});
    options.chunk_bytes = bytes / static_cast<double>(options.chunks);
    const WorldEnd end = simulation::play(options);
    if (!end.problem.empty()) fail("{}", end.problem);
    const double bound = bytes / (held ? settings.link : std::min(settings.link, settings.source));
    Tool::print(
        {{"bench", "stage_scale"},
         {"nodes", settings.nodes},
         {"case", name_of(settings)},
         {"holders", options.rotating ? settings.nodes : options.holders.size()},
         {"sources", settings.sources},
         {"bytes", bytes},
         {"link_bandwidth", settings.link},
         {"source_bandwidth", settings.source},
         {"latency", settings.latency},
         {"seconds", end.seconds},
         {"bound_ratio", end.seconds / bound},
         {"sent_max_ratio", end.sent_max_ratio},
         {"source_ratio", end.source_ratio},
         {"opens", end.opens},
         {"rounds", cost.rounds},
         {"rendezvous_bytes", cost.bytes},
         {"rendezvous_share", static_cast<double>(cost.bytes) /
                                  (128.0 * settings.nodes * static_cast<double>(settings.sources + 8))},
         {"helper_seconds", cost.helper_seconds}});
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
  app.add_option("--reader-bandwidth", settings.reader);
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
