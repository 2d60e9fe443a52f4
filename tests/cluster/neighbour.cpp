// Another site plugin for the stack of plugin_callbacks_test.sh: it has its own --pin, and gives the tasks its value. With
// the argument container=FOLDER it switches the tasks to a mount namespace in which the folder is empty, at the moment
// at which pyxis enters its container.
extern "C" {
#include <slurm/spank.h>
// Without these the constants of the macro are local to this file.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(neighbour, 1)
}

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <string>

namespace {

bool write_text(const char* file, const std::string& text) {
  const int fd = ::open(file, O_WRONLY | O_CLOEXEC);
  const bool good = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return good;
}

bool enter_container(const char* empty) {
  const std::string user = std::to_string(::getuid());
  const std::string group = std::to_string(::getgid());
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_text("/proc/self/setgroups", "deny") &&
         write_text("/proc/self/uid_map", user + " " + user + " 1") &&
         write_text("/proc/self/gid_map", group + " " + group + " 1") &&
         ::mount("none", empty, "tmpfs", 0, nullptr) == 0;
}

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
  const std::string option = "container=";
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.compare(0, option.size(), option) == 0 && !enter_container(word.c_str() + option.size())) {
      slurm_error("neighbour: cannot enter its container");
      return -1;
    }
  }
  return spank_setenv(spank, "NEIGHBOUR", g_pin.c_str(), 1) == ESPANK_SUCCESS ? 0 : -1;
}
