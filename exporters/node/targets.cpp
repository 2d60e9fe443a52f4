#include "exporters/node/targets.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/error.h"
#include "common/process.h"

namespace lockstep::exporter {

std::string targets_of(const std::string& sinfo, int port) {
  std::set<std::string> targets;  // sinfo lists a node once for each of its partitions
  std::istringstream lines(sinfo);
  for (std::string node, state; lines >> node >> state;) {
    const bool absent =
        state.ends_with('~') || state.starts_with("powered_down") || state.starts_with("future");
    if (!absent) targets.insert(fmt::format("{}:{}", node, port));
  }
  return nlohmann::json::array({{{"targets", targets}}}).dump();
}

std::string targets_of_slurm(int port) {
  // Without an answer from slurmctld sinfo would wait for minutes.
  const ProcessResult result = run_process(
      {"timeout", "--kill-after=1", "10", "sinfo", "--noheader", "--Node", "--all", "--format=%N %T"});
  constexpr int kTimedOut = 124;
  constexpr int kKilled = 137;
  if (result.exit_code == kTimedOut || result.exit_code == kKilled) {
    fail("sinfo did not answer within 10 s, so the nodes are unknown: check slurmctld");
  }
  if (result.exit_code != 0) {
    fail("sinfo failed, so the nodes are unknown: {}", result.error.substr(0, result.error.find('\n')));
  }
  return targets_of(result.output, port);
}

}  // namespace lockstep::exporter
