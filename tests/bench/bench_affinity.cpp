// Measures how long a pinning plan takes on a topology that is already loaded: for 256 tasks on 384 hardware
// threads, and for a few other cases.

#include <algorithm>

#include "common/clock.h"
#include "common/tool.h"
#include "plugin/affinity/plan.h"
#include "plugin/affinity/topology.h"

namespace {

using namespace lockstep;
using namespace lockstep::affinity;

constexpr int kRuns = 51;

double median_milliseconds(const Machine& machine, const Request& request) {
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    const std::uint64_t begin = monotonic_ns();
    const auto plans = make_plan(machine, request);
    times.push_back(seconds_between(begin, monotonic_ns()) * 1e3);
    if (plans.size() != static_cast<std::size_t>(request.tasks)) return -1;
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void measure() {
  for (const char* topology : {"package:2 [numa] l3:12 core:8 pu:2", "package:2 numa:4 l3:3 core:8 pu:2"}) {
    const Machine machine = load_description(topology);
    for (const int tasks : {8, 192, 256, 1024}) {
      Request request;
      request.tasks = tasks;
      const double milliseconds = median_milliseconds(machine, request);
      Tool::print({{"bench", "affinity"},
                   {"topology", topology},
                   {"cpus", machine.known.size()},
                   {"tasks", tasks},
                   {"milliseconds", milliseconds}});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Tool tool("bench_affinity", "Measures how long a pinning plan takes on a loaded topology.");
  bool peers = false;
  tool.app().add_flag("--peers", peers,
                      "Accepted, as by every benchmark, but without effect: there is no peer");
  return tool.run(argc, argv, [&] { measure(); });
}
