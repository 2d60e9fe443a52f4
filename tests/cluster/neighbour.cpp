// Another site plugin for the stack of plugin_callbacks_test.sh: it has its own --pin, and gives the tasks its value. With
// the argument container=FOLDER it also begins a container in task_init, as pyxis does: the tasks get a mount namespace
// of their own, where the folder is empty.
extern "C" {
#include <slurm/spank.h>
// Without these the constants of the macro are local to this file.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(neighbour, 1)
}

#include <sched.h>
#include <sys/mount.h>

#include <string>
#include <string_view>

namespace {

std::string g_pin;

int take(int /*value*/, const char* text, int /*remote*/) {
  g_pin = text;
  return 0;
}

}  // namespace

extern "C" int slurm_spank_init(spank_t spank, int /*argc*/, char** /*argv*/) {
  char name[] = "pin";
  char arguments[] = "WORD";
  char usage[] = "the neighbour's option";
  spank_option option{name, arguments, usage, 1, 0, &take};
  return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

extern "C" int slurm_spank_task_init(spank_t spank, int argc, char** argv) {
  constexpr std::string_view kContainer = "container=";
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with(kContainer)) continue;
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return -1;
    if (::mount("tmpfs", argument.substr(kContainer.size()).c_str(), "tmpfs", 0, nullptr) != 0) return -1;
  }
  return spank_setenv(spank, "NEIGHBOUR", g_pin.c_str(), 1) == ESPANK_SUCCESS ? 0 : -1;
}
