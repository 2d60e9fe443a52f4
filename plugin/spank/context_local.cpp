#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "plugin/spank/context.h"
#include "plugin/spank/given.h"
#include "plugin/spank/process.h"
#include "plugin/spank/report.h"
#include "plugin/spank/srun_link.h"

namespace lockstep::spank::local {
namespace {

// Between init, where the port must be known, and init_post_opt, where it is known whether it is wanted.
int g_socket = -1;
std::string g_key;
// How the task is bound in which srun was called: Slurm hands that on, nobody has asked for it.
std::string g_inherited_type, g_inherited_list;
// SLURM_CPU_BIND as the user has set it, which Slurm sets together with the other two.
bool g_bound_by_variable = false;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// SLURM_CPU_BIND_LIST without "0x" and zeros in front of its numbers: slurmstepd writes them, srun does not.
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

// True where an option of srun's command line begins so: options may be shortened.
bool called_with(std::initializer_list<std::string_view> beginnings) {
  std::ifstream words("/proc/self/cmdline");
  for (std::string word; std::getline(words, word, '\0');) {
    for (const std::string_view beginning : beginnings) {
      if (word.starts_with(beginning)) return true;
    }
  }
  return false;
}

// By now srun has put into its variables what --cpu-bind says, and --hint, which asks for no CPUs by name.
bool bound_by_hand() {
  const std::string type = variable("SLURM_CPU_BIND_TYPE");
  if (type.empty() || type == "none") return false;
  if (type == g_inherited_type && list_of_cpus() == g_inherited_list) return false;
  const bool hint = called_with({"--hi"}) || !variable("SLURM_HINT").empty();
  return !hint || g_bound_by_variable || called_with({"--cpu-b", "--cpu_b"});
}

SrunLink make_link() {
  SrunLink link;
  g_socket = bind_port(given().config.first_port, given().config.last_port, link.port);
  if (g_socket < 0) link.port = 0;
  link.key = g_key = random_key();
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) link.host = host.data();
  std::array<char, PATH_MAX> folder{};
  link.folder = ::getcwd(folder.data(), folder.size()) != nullptr ? folder.data() : "/";
  return link;
}

void close_socket() {
  if (g_socket >= 0) ::close(std::exchange(g_socket, -1));
}

// The helper lives as long as srun: it sees the pipe, whose other end stays open here, come to its end.
void start_rendezvous() {
  std::array<int, 2> alive{};
  if (::pipe2(alive.data(), O_CLOEXEC) != 0) throw Refusal("cannot make a pipe: " + errno_text(errno));
  Command command;
  command.arguments = {given().config.helpers + "/lockstep-stage", "rendezvous", "--wait",
                       std::to_string(given().config.wait)};
  command.environment = {"LOCKSTEP_RENDEZVOUS_KEY=" + g_key};
  command.descriptors = {g_socket, alive[0]};
  // srun launches the components of a heterogeneous job from threads of their own; the signal would come when
  // such a thread ends.
  command.dies_with_parent = false;
  try {
    ::listen(g_socket, SOMAXCONN);  // nodes may come before the helper is up; the kernel keeps them
    start(command);
  } catch (const Refusal& refusal) {
    // A step on one node needs no rendezvous, and one on several will say that it found none.
    log(std::string("no rendezvous: ") + refusal.what());
  }
  ::close(alive[0]);
}

}  // namespace

void init(spank_t spank, int argc, char** argv) {
  g_inherited_type = variable("SLURM_CPU_BIND_TYPE");  // not set by users, whose variable is SLURM_CPU_BIND
  g_inherited_list = list_of_cpus();
  g_bound_by_variable = g_inherited_type.empty() && !variable("SLURM_CPU_BIND").empty();
  const char* const partition = std::getenv("SLURM_JOB_PARTITION");
  load_config(argc, argv, partition != nullptr ? partition : "");
  options_from_environment();
  if (given().config.enabled) ::setenv(link_variable().c_str(), make_link().encode().c_str(), 1);
  register_options(spank, true);
}

void init_post_opt(spank_t /*spank*/) {
  // Slurm has read it by now; what srun starts has no use for the key.
  ::unsetenv(link_variable().c_str());
  const Settings settings = settings_or_exit();
  if (given().config.enabled && !settings.sources.empty() && g_socket >= 0) start_rendezvous();
  close_socket();
}

void user_init() {
  const bool by_hand = bound_by_hand();
  // What is taken away here still reaches the tasks.
  if (by_hand || !variable(kBoundByHand).empty()) ::setenv(kBoundByHand, by_hand ? kYes : "no", 1);
}

}  // namespace lockstep::spank::local
