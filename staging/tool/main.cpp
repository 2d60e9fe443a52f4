// lockstep-stage: copies packed data into the node's cache and manages the cache.

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/tool.h"
#include "staging/cache/store.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "staging/step/stage_step.h"
#include "staging/step/step_report.h"
#include "staging/tool/cache_verbs.h"

namespace lockstep::transfer {
namespace {

std::string read_standard_input() {
  std::string text;
  std::array<char, 65536> part{};
  ssize_t count = 0;
  while ((count = ::read(STDIN_FILENO, part.data(), part.size())) != 0) {
    if (count > 0) text.append(part.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) fail_errno("cannot read standard input");
  }
  return text;
}

void run_rendezvous(int wait_seconds) {
  // Ctrl-C in a terminal reaches this process too, but srun decides what happens to the step.
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTSTP, SIGPIPE}) ::signal(signal, SIG_IGN);
  constexpr int kSocket = 3;
  constexpr int kAlive = 4;
  const UniqueFd alive(kAlive);
  RendezvousServer::Options options;
  options.key = read_standard_input();
  if (options.key.empty()) fail_usage("no key on standard input; srun's plugin starts this verb");
  options.join_timeout = std::chrono::seconds(wait_seconds);
  options.report = options.progress = [](const std::string& line) { print_for_job(line); };
  RendezvousServer server(UniqueFd(kSocket), options);
  server.run(alive);
}

StepRequest read_request() {
  std::string why;
  try {
    const nlohmann::json read = parse_any_bytes(read_standard_input());
    const auto request = read.get<StepRequest>();
    const nlohmann::json known = request;
    for (const auto& [key, value] : read.items()) {
      if (!known.contains(key)) why = fmt::format("unknown key '{}'", key);
    }
    if (why.empty()) return request;
  } catch (const nlohmann::json::exception& error) {
    why = error.what();
  }
  fail("the plugin and lockstep-stage {} are of different versions: check 'helpers' in lockstep.conf ({})",
       version(), why);
}

// Only the Slurm plugin calls these verbs:
//
//   step        on a node, in the first task of a step: stage_step()
//   rendezvous  beside srun: the rendezvous at which the step's nodes agree
//   recover     at the end of a job: finishes interrupted removals in the user's store, and removes partial
//               copies that are more than a day old
void add_step_verbs(Tool& tool) {
  tool.verb("step", "For the Slurm plugin: stage a step's sources on this node, as standard input requests",
            [] { stage_step(StepCall(read_request())); });

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

}  // namespace
}  // namespace lockstep::transfer

int main(int argc, char** argv) {
  // A restrictive umask could lock the next call out. Files for other readers get explicit modes.
  ::umask(077);
  lockstep::raise_open_files_limit();  // srun's helper has a connection to each node of the step
  lockstep::Tool tool(
      "lockstep-stage",
      "Copy packed data into this node's cache, verified and shared by the jobs that run here");
  lockstep::transfer::add_put_verb(tool);
  lockstep::transfer::add_cache_verbs(tool);
  lockstep::transfer::add_step_verbs(tool);
  return tool.run(argc, argv);
}
