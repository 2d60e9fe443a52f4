#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>

#include "plugin/spank/context.h"
#include "plugin/spank/given.h"
#include "plugin/spank/report.h"
#include "plugin/spank/sources.h"

namespace lockstep::spank {

namespace {

// Of a call's time: who submits many jobs must not wait for what the nodes check too.
constexpr std::chrono::milliseconds kCheckSources(1500);

std::string current_folder() {
  std::array<char, PATH_MAX> folder{};
  if (::getcwd(folder.data(), folder.size()) == nullptr) {
    throw Refusal(
        "cannot find the current folder, which relative sources are seen from; change to one that is there");
  }
  return folder.data();
}

Settings checked_settings() {
  Settings settings = given().settings();
  for (std::string& source : settings.sources) {
    if (!source.starts_with('/')) source = absolute_source(source, current_folder());
    source = absolute_source(source, "/");
  }
  if (!given().config.enabled) return settings;
  check_names(settings.sources, given().config.sources);
  if (!settings.sources.empty() && given().config.caches.empty()) {
    throw Refusal("--stage: the administrator has set no 'cache' in lockstep.conf");
  }
  if (given().config.check_sources) check_sources(settings.sources, kCheckSources);
  return settings;
}

}  // namespace

Settings settings_or_exit() {
  // Jobs that ask for nothing are not held up by a mistake in the administrator's file.
  if (!given().any() && !given().config_error.empty()) return {};
  try {
    Settings settings = checked_settings();
    if (!given().config.enabled && given().any()) {
      say("switched off by the administrator; its options have no effect");
    }
    return settings;
  } catch (const Refusal& refusal) {
    say(refusal.what());
    ::_exit(1);
  }
}

namespace allocator {

void init(spank_t spank, int argc, char** argv) {
  load_config(argc, argv, "");
  options_from_environment();
  register_options(spank, false);
}

void init_post_opt(spank_t spank) {
  const Settings settings = settings_or_exit();
  if (settings.sources.empty()) return;
  // Seen from the nodes a relative path would mean another place: the job is given the absolute one. sbatch
  // sends its job's variables from Slurm's list, salloc's command inherits ours.
  const std::string name = handed_on_name(Option::stage);
  const std::string value = join_sources(settings.sources);
  spank_job_control_setenv(spank, name.c_str(), value.c_str(), 1);
  ::setenv(name.c_str(), value.c_str(), 1);
  if (std::getenv(("SLURM_SPANK_" + name).c_str()) != nullptr)
    ::setenv(("SLURM_SPANK_" + name).c_str(), value.c_str(), 1);
}

}  // namespace allocator
}  // namespace lockstep::spank
