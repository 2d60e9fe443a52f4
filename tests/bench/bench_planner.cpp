// Measures how long planning an epoch takes and how equal its ranks are, for three real lists of lengths on
// several numbers of ranks, a heavy-tailed list with several accumulations and stretches, and padded
// batches. Each line {"bench":"planner","implementation",...} has the median time of the runs and the
// numbers of lockstep-plan make. --peers also runs other ways of planning (planner_peers.h) on the same
// lengths. --stream plans lengths that are not in memory.

#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/tool.h"
#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/bench/length_lists.h"
#include "tests/bench/planner_peers.h"

namespace lockstep::bench {
namespace {

using data::Lengths;
using data::Plan;
using data::PlanOptions;

struct Settings {
  std::vector<int> ranks = {8, 64, 512};
  std::uint64_t cap = 16384;
  std::size_t samples = 2'000'000;
  int runs = 5;
  bool peers = false;
  bool quick = false;
  std::uint64_t stream = 0;
};

std::vector<List> lists(const Settings& settings) {
  const std::string folder = lengths_folder();
  std::vector<List> all;
  all.push_back(azure_conv());
  if (settings.quick) return all;
  all.push_back({"wikipedia", data::lengths_from_histogram(folder + "wikipedia_bert_seq512_histogram.csv",
                                                           settings.samples)});
  all.push_back(
      {"squad", data::lengths_from_histogram(folder + "squad11_seq384_histogram.csv", settings.samples)});
  // Samples of the short list, drawn with replacement, to measure the time for a heavy tail.
  Lengths drawn;
  data::Random random(0, 0, 0);
  for (std::size_t i = 0; i < settings.samples; ++i) {
    drawn.tokens.push_back(all[0].lengths.tokens[random.below(all[0].lengths.tokens.size())]);
  }
  drawn.fingerprint = data::fingerprint_of(drawn.tokens);
  all.push_back({"azure_conv_drawn", std::move(drawn)});
  return all;
}

void report(const std::string& implementation, const List& list, const PlanOptions& options, int runs,
            const std::function<Plan()>& make) {
  std::vector<double> seconds;
  Plan plan;
  for (int run = 0; run < runs; ++run) {
    const std::uint64_t begin = monotonic_ns();
    plan = make();
    seconds.push_back(seconds_between(begin, monotonic_ns()));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const data::PlanStats stats = data::stats_of(plan, list.lengths.tokens);
  nlohmann::json line = stats;
  line.update({{"bench", "planner"},
               {"implementation", implementation},
               {"lengths", list.name},
               {"samples", list.lengths.tokens.size()},
               {"ranks", options.ranks},
               {"cap", options.cap},
               {"accumulate", options.accumulate},
               {"stretch", step_stretch(options)},
               {"padded", options.padded},
               {"cost", {options.cost.a, options.cost.b}},
               {"seconds", median},
               {"seconds_least", seconds.front()},
               {"runs", runs}});
  Tool::print(line);
}

// Lengths from a formula, similar to a log-normal distribution: between 16 and 8,000, mean about 700.
class Formula final : public data::LengthSource {
 public:
  explicit Formula(std::size_t samples) : samples_(samples) {}
  std::size_t size() const override { return samples_; }
  void read(std::size_t first, std::span<std::uint32_t> lengths) const override {
    for (std::uint32_t& length : lengths) {
      std::uint64_t word = ++first * 0x9e3779b97f4a7c15U;
      word = (word ^ (word >> 29U)) * 0xbf58476d1ce4e5b9U;
      word ^= word >> 32U;
      length = static_cast<std::uint32_t>(16 + ((word & 0x3ffU) >> ((word >> 20U) & 3U)) +
                                          (((word >> 40U) & 0x3fU) == 0 ? (word >> 50U) & 0x1fffU : 0));
    }
  }
  std::string fingerprint() const override { return "formula"; }

 private:
  std::size_t samples_;
};

void stream(std::uint64_t samples, std::uint64_t cap) {
  const Formula source(samples);
  const std::uint64_t begin = monotonic_ns();
  data::EpochPlanner planner(source, {.ranks = 64, .cap = cap, .cost = {24576, 1}});
  std::uint64_t steps = 0;
  for (data::PlannedBlock block; planner.next_block(block);) steps += block.plan.steps();
  const double seconds = seconds_between(begin, monotonic_ns());
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  Tool::print({{"bench", "planner"},
               {"implementation", "lockstep"},
               {"lengths", "stream"},
               {"samples", samples},
               {"ranks", 64},
               {"cap", cap},
               {"cost", {24576, 1}},
               {"steps", steps},
               {"seconds", seconds},
               {"samples_per_second", static_cast<double>(samples) / seconds},
               {"peak_bytes", static_cast<std::uint64_t>(usage.ru_maxrss) * 1024}});
}

void run_case(const Settings& settings, const List& list, const PlanOptions& options) {
  report("lockstep", list, options, settings.runs,
         [&] { return make_plan(list.lengths.tokens, options, list.lengths.fingerprint); });
  if (!settings.peers || options.padded || options.step_stretch) return;
  for (const Peer& peer : peers()) {
    report(peer.name, list, options, 1, [&] { return peer.plan(list.lengths.tokens, options); });
  }
}

void run(const Settings& settings) {
  if (settings.stream > 0) return stream(settings.stream, settings.cap);
  const std::vector<List> all = lists(settings);
  const PlanOptions base{.cap = settings.cap, .cost = {24576, 1}};
  for (const List& list : all) {
    for (const int ranks : settings.ranks) {
      PlanOptions options = base;
      options.ranks = ranks;
      run_case(settings, list, options);
    }
  }
  if (settings.quick) return;
  const List heavy = heavy_tail();
  PlanOptions options = base;
  options.cap = 131'072;
  for (const int ranks : {8, 64}) {
    for (const int accumulate : {4, 2}) {
      options.ranks = ranks;
      options.accumulate = accumulate;
      run_case(settings, heavy, options);
    }
  }
  options.ranks = 8;
  options.accumulate = 1;
  for (const double stretch : {1.0, 1.5, 2.0, 3.0}) {
    options.step_stretch = stretch;
    run_case(settings, heavy, options);
  }
  options = base;
  options.padded = true;
  for (const int ranks : {8, 64}) {
    for (const int accumulate : {1, 2, 4}) {
      options.ranks = ranks;
      options.accumulate = accumulate;
      run_case(settings, all.front(), options);
    }
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_planner", "Measures how long planning takes and how equal the ranks are.");
  lockstep::bench::Settings settings;
  CLI::App& app = tool.app();
  app.add_option("--ranks", settings.ranks, "Numbers of ranks")->delimiter(',');
  app.add_option("--cap", settings.cap, "Tokens that a micro-batch may hold")->capture_default_str();
  app.add_option("--samples", settings.samples, "Samples of the long lists")->capture_default_str();
  app.add_option("--runs", settings.runs, "Runs; the median is printed")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--stream", settings.stream, "Instead, plan this many lengths that are not in memory");
  app.add_flag("--peers", settings.peers, "Also plan like fairseq, multipack and greedy with swaps");
  app.add_flag("--quick", settings.quick, "Only the short list");
  return tool.run(argc, argv, [&] { lockstep::bench::run(settings); });
}
