// Another site plugin for the stack of plugin_callbacks_test.sh: it has its own --pin, and gives the tasks its value.
extern "C" {
#include <slurm/spank.h>
// Without these the constants of the macro are local to this file.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(neighbour, 1)
}

#include <string>

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

extern "C" int slurm_spank_task_init(spank_t spank, int /*argc*/, char** /*argv*/) {
  return spank_setenv(spank, "NEIGHBOUR", g_pin.c_str(), 1) == ESPANK_SUCCESS ? 0 : -1;
}
