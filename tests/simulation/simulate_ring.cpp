// Plays rings from seeds and prints one line: which seeds failed, and how much was sent and read. A failure is played again
// with its seed: simulate_ring --nodes N --seeds S-S --explain.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/tool.h"
#include "tests/simulation/ring_world.h"

namespace {

using lockstep::simulation::WorldEnd;
using lockstep::simulation::WorldOptions;

struct Arguments {
  std::uint32_t nodes = 0;
  std::size_t chunks = 0;
  std::string seeds = "1-1000";
  bool explain = false;
};

std::pair<std::uint64_t, std::uint64_t> range_of(const std::string& text) {
  const auto number = [&](const std::string& part) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size())
      lockstep::fail_usage("--seeds: '{}' must be A-B", text);
    return value;
  };
  const std::size_t dash = text.find('-');
  if (dash == std::string::npos) return {number(text), number(text)};
  return {number(text.substr(0, dash)), number(text.substr(dash + 1))};
}

void run(const Arguments& arguments) {
  const auto [first, last] = range_of(arguments.seeds);
  nlohmann::json failed = nlohmann::json::array();
  double sent = 0;
  double source = 0;
  std::uint64_t wrong = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.nodes = arguments.nodes > 0 ? arguments.nodes : 8 + static_cast<std::uint32_t>(seed % 57);
    options.chunks = arguments.chunks > 0 ? arguments.chunks : 16 + seed * 7 % 150;
    const WorldEnd end = lockstep::simulation::play(options);
    sent = std::max(sent, end.sent_max_ratio);
    source = std::max(source, end.source_ratio);
    wrong += end.published_wrong;
    if (end.problem.empty()) continue;
    failed.push_back(seed);
    if (arguments.explain) fmt::print(stderr, "seed {}: {}\n", seed, end.problem);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("{}\n", nlohmann::json({{"bench", "ring"},
                                     {"nodes", arguments.nodes},
                                     {"seeds", arguments.seeds},
                                     {"failed", failed},
                                     {"seconds", seconds.count()},
                                     {"sent_max_ratio", sent},
                                     {"source_ratio_max", source},
                                     {"published_wrong", wrong}})
                         .dump());
  if (!failed.empty()) lockstep::fail("{} of {} seeds failed", failed.size(), last - first + 1);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::Tool tool("simulate_ring", "Plays the nodes of a ring from seeds");
  Arguments arguments;
  tool.app().add_option("--nodes", arguments.nodes, "Nodes of each ring; 0: 8 to 64, by the seed");
  tool.app().add_option("--chunks", arguments.chunks, "Chunks of the data; 0: by the seed");
  tool.app().add_option("--seeds", arguments.seeds, "A-B");
  tool.app().add_flag("--explain", arguments.explain, "Print what was wrong");
  return tool.run(argc, argv, [&] { run(arguments); });
}
