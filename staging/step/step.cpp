#include "staging/step/step.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/leaf/number.h"
#include "common/leaf/subnet.h"
#include "staging/cache/store.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "staging/step/stage_step.h"
#include "staging/step/step_report.h"

namespace lockstep::transfer {
namespace {

void run_rendezvous(int wait_seconds) {
  // Ctrl-C in a terminal reaches this process too, but srun decides what happens to the step.
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTSTP, SIGPIPE}) ::signal(signal, SIG_IGN);
  constexpr int kSocket = 3;
  constexpr int kAlive = 4;
  const UniqueFd alive(kAlive);
  const std::optional<std::string> key = environment::get("LOCKSTEP_RENDEZVOUS_KEY");
  if (!key) fail_usage("LOCKSTEP_RENDEZVOUS_KEY is not set; srun's plugin starts this verb");
  RendezvousServer::Options options;
  options.key = *key;
  options.join_timeout = std::chrono::seconds(wait_seconds);
  options.report = options.progress = [](const std::string& line) { print_for_job(line); };
  RendezvousServer server(UniqueFd(kSocket), options);
  server.run(alive);
}

// The problem, or nothing, and then the sources, each ended by a zero byte. Names are bytes, which JSON cannot hold.
void read_names(StepCall& call) {
  std::string text;
  std::array<char, 65536> part{};
  ssize_t count = 0;
  while ((count = ::read(STDIN_FILENO, part.data(), part.size())) != 0) {
    if (count > 0) text.append(part.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) fail_errno("cannot read the sources from standard input");
  }
  std::vector<std::string> names;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    names.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (names.empty()) fail_usage("--names-from-stdin: standard input is empty");
  if (!names.front().empty()) call.problem = names.front();
  call.sources.assign(names.begin() + 1, names.end());
}

void set_ports(const std::string& range, Exchange::Options& exchange) {
  const std::size_t dash = range.find('-');
  const auto low = to_number<std::uint16_t>(range.substr(0, dash));
  const auto high = dash == std::string::npos ? low : to_number<std::uint16_t>(range.substr(dash + 1));
  if (dash == std::string::npos || !low || !high) fail_usage("--ports '{}': must be LOW-HIGH", range);
  exchange.first_port = *low;
  exchange.last_port = *high;
}

}  // namespace

void add_step_verbs(Tool& tool) {
  const auto call = std::make_shared<StepCall>();
  const auto from_stdin = std::make_shared<bool>(false);
  CLI::App& step = tool.verb("step", "For the Slurm plugin: stage a step's sources on this node", [=] {
    if (*from_stdin) read_names(*call);
    if (call->hello.node_id >= call->hello.nodes)
      fail_usage("--node-id ({}) must be below --nodes ({})", call->hello.node_id, call->hello.nodes);
    if (call->mode == StepMode::background && call->watch_fd < 0)
      fail_usage("--mode background needs --watch-fd");
    stage_step(*call);
  });
  step.add_option("source", call->sources, "Absolute paths of packs, shards, patterns");
  step.add_flag("--names-from-stdin", *from_stdin,
                "Read --problem and the sources from standard input, each ended by a zero byte");
  step.add_option("--cache", call->put.cache_dir, "The user's store on this node")->required();
  step.add_option("--job", call->hello.job, "Slurm's job number")->required();
  step.add_option("--restart", call->restart, "How often Slurm has queued the job again");
  step.add_option("--step", call->hello.step, "Slurm's step")->required();
  step.add_option("--node", call->hello.node, "Slurm's name of this node")->required();
  step.add_option("--node-id", call->hello.node_id, "Which of the step's nodes this is, from 0");
  step.add_option("--nodes", call->hello.nodes, "How many nodes the step has")->check(CLI::PositiveNumber);
  step.add_option("--node-list", call->hello.node_list, "Names of the step's nodes, in Slurm's brackets");
  step.add_option("--component", call->hello.component, "Which component of a heterogeneous step this is");
  step.add_option_function<std::string>(
      "--verify", [call](const std::string& word) { call->put.verify = parse_verify(word); },
      "How a copy in the cache is checked before it is used: quick, full or off");
  step.add_option("--record", call->record, "Folder of the step's records");
  step.add_option("--problem", call->problem, "Why this node cannot stage: reported to the other nodes");
  add_choice<StepMode>(step, "--mode", call->mode,
                       {{"block", StepMode::block}, {"background", StepMode::background}},
                       "block: wait until staged; background: links first, copies later");
  add_choice<OnError>(step, "--on-error", call->on_error,
                      {{"fail", OnError::fail}, {"source", OnError::source}},
                      "fail: end the step; source: read from the source");
  step.add_option("--quota", call->put.limits.quota, "Bytes that the user may have in the store; 0: any");
  step.add_option("--min-free", call->put.limits.min_free, "Bytes of the disk that a copy leaves free");
  step.add_option_function<int>(
          "--keep", [call](int seconds) { call->put.limits.keep = std::chrono::seconds(seconds); },
          "Seconds that an object stays after its last use")
      ->check(CLI::NonNegativeNumber);
  step.add_option("--shared", call->put.shared, "The store that the admin fills");
  step.add_option("--lease", call->put.lease, "File whose lock protects this step's objects from eviction");
  step.add_option("--bandwidth", call->put.bandwidth, "Bytes a second read from the source; 0: any");
  step.add_option(
      "--source-patience", call->call_timeout,
      "Seconds after which a call to the source that does not return fails this node; 0: automatic");
  step.add_option("--watch-fd", call->watch_fd, "Pipe: background staging ends when its other end is closed");
  step.add_option_function<std::string>(
      "--cpus", [call](const std::string& list) { call->cpus = parse_cpu_list(list); },
      "CPUs to run on, as 0-3,8");
  add_choice<bool>(step, "--cooperate", call->cooperate, {{"on", true}, {"off", false}},
                   "on: read the source once for all nodes of the step");
  step.add_option_function<std::string>(
      "--ports", [call](const std::string& range) { set_ports(range, call->exchange); },
      "Ports to exchange chunks on, as LOW-HIGH");
  step.add_option_function<std::vector<std::string>>(
          "--peer-network",
          [call](const std::vector<std::string>& networks) {
            for (const std::string& text : networks) {
              const std::optional<Subnet> network = Subnet::parse(text);
              if (!network) fail_usage("--peer-network '{}': must be a network such as 10.1.0.0/16", text);
              call->exchange.peer_networks.push_back(*network);
            }
          },
          "Networks on which the step's nodes reach each other; the first that a node has")
      ->delimiter(',');

  const auto wait = std::make_shared<int>(60);
  CLI::App& rendezvous = tool.verb(
      "rendezvous", "For the Slurm plugin: let a step's nodes agree; descriptors 3 (socket) and 4 (alive)",
      [wait] { run_rendezvous(*wait); });
  rendezvous.add_option("--wait", *wait, "Seconds that nodes may come after the first one")
      ->check(CLI::Range(1, 86400));

  const auto cache = std::make_shared<std::string>();
  CLI::App& recover =
      tool.verb("recover", "For the Slurm plugin: finish interrupted removals, and remove old partial copies",
                [cache] { cache::Store(*cache).recover(); });
  recover.add_option("--cache", *cache, "The user's store on this node")->required();
}

}  // namespace lockstep::transfer
