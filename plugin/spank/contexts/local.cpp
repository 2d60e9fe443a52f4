#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string_view>

#include "common/leaf/network.h"
#include "common/leaf/random.h"
#include "plugin/spank/contexts/context.h"
#include "plugin/spank/process/process.h"
#include "plugin/spank/process/report.h"
#include "plugin/spank/staging/srun_link.h"

namespace lockstep::spank::local {
namespace {

// init must choose the port; only init_post_opt knows whether the step needs a rendezvous.
UniqueFd g_socket;
std::string g_key;
// Slurm passes on the binding of the task that called srun, without a user's request.
std::string g_inherited_type, g_inherited_list;
// The user set SLURM_CPU_BIND alone; Slurm sets it together with the other two variables.
bool g_bound_by_variable = false;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// SLURM_CPU_BIND_LIST without "0x" and leading zeros: slurmstepd writes them, srun does not.
std::string list_of_cpus() {
  std::string list;
  bool begins = true;
  for (const char c : variable("SLURM_CPU_BIND_LIST")) {
    if (begins && (c == '0' || c == 'x')) continue;
    begins = c == ',';
    list += c;
  }
  return list;
}

// True if an option of srun's command line has one of these beginnings: users may shorten options.
bool called_with(std::initializer_list<std::string_view> beginnings) {
  std::ifstream words("/proc/self/cmdline");
  for (std::string word; std::getline(words, word, '\0');) {
    for (const std::string_view beginning : beginnings) {
      if (word.starts_with(beginning)) return true;
    }
  }
  return false;
}

// srun sets these variables after --cpu-bind, but also after --hint, which does not choose CPUs.
bool bound_by_hand() {
  const std::string type = variable("SLURM_CPU_BIND_TYPE");
  if (type.empty() || type == "none") return false;
  if (type == g_inherited_type && list_of_cpus() == g_inherited_list) return false;
  const bool hint = called_with({"--hi"}) || !variable("SLURM_HINT").empty();
  return !hint || g_bound_by_variable || called_with({"--cpu-b", "--cpu_b"});
}

SrunLink make_link() {
  SrunLink link;
  g_socket = bind_port(invocation().config.first_port, invocation().config.last_port, false, link.port);
  if (!g_socket) link.port = 0;
  link.key = g_key = random_hex(SrunLink::kKeyBytes);
  link.host = full_host_name();
  std::array<char, PATH_MAX> folder{};
  link.folder = ::getcwd(folder.data(), folder.size()) != nullptr ? folder.data() : "/";
  return link;
}

// The helper ends with srun, when the pipe's write end, which stays open here, closes.
void start_rendezvous() {
  Pipe lifetime;
  lifetime.write_end.release();
  Command command;
  command.arguments = {helper_program(invocation().config.helpers, "lockstep-stage"), "rendezvous", "--wait",
                       std::to_string(invocation().config.wait)};
  command.input = g_key;
  command.descriptors = {g_socket.get(), lifetime.read_end.get()};
  // srun launches each component of a heterogeneous job from a separate thread, whose end would send the signal.
  command.dies_with_parent = false;
  try {
    ::listen(g_socket.get(), SOMAXCONN);  // the kernel queues nodes that connect before the helper is up
    start(command);
  } catch (const Error& error) {
    // A step on one node needs no rendezvous; one on several nodes reports that there is none.
    log(std::string("no rendezvous: ") + error.what());
  }
}

}  // namespace

void init(spank_t spank, int argc, char** argv) {
  g_inherited_type = variable("SLURM_CPU_BIND_TYPE");  // users set SLURM_CPU_BIND instead
  g_inherited_list = list_of_cpus();
  g_bound_by_variable = g_inherited_type.empty() && !variable("SLURM_CPU_BIND").empty();
  const char* const partition = std::getenv("SLURM_JOB_PARTITION");
  load_config(argc, argv, partition != nullptr ? partition : "");
  options_from_environment();
  if (invocation().config.enabled)
    ::setenv(passed_variable(link_variable()).c_str(), make_link().encode().c_str(), 1);
  register_options(spank, true);
}

void init_post_opt(spank_t /*spank*/) {
  // Slurm has read the link. Processes that srun starts do not need the key.
  ::unsetenv(passed_variable(link_variable()).c_str());
  const Settings settings = settings_or_exit(std::getenv("SLURM_JOB_ID") != nullptr);
  if (invocation().config.enabled && !settings.sources.empty() && g_socket) start_rendezvous();
  g_socket.reset();
}

void user_init() {
  if (invocation().has_options()) ::setenv(kStages, invocation().stages() ? kYes : "no", 1);
  const bool by_hand = bound_by_hand();
  // unsetenv() would not help: tasks still get a variable that is removed here.
  if (by_hand || !variable(kBoundByHand).empty()) ::setenv(kBoundByHand, by_hand ? kYes : "no", 1);
}

}  // namespace lockstep::spank::local
