#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>

#include "plugin/spank/contexts/context.h"
#include "plugin/spank/process/report.h"
#include "plugin/spank/staging/sources.h"

namespace lockstep::spank {

namespace {

// The nodes check the sources too, so a submission need not wait for a complete check.
constexpr std::chrono::milliseconds kSourceCheckTime(1500);

std::string current_folder() {
  std::array<char, PATH_MAX> folder{};
  if (::getcwd(folder.data(), folder.size()) == nullptr) {
    throw Error(
        "the current directory no longer exists, so relative sources cannot be resolved: cd to an existing directory");
  }
  return folder.data();
}

Settings checked_settings(bool in_job) {
  Settings settings = invocation().settings();
  for (std::string& source : settings.sources) {
    if (!source.starts_with('/')) source = absolute_source(source, current_folder());
    source = absolute_source(source, "/");
  }
  if (!invocation().config.enabled) return settings;
  check_names(settings.sources, invocation().config.sources);
  if (!settings.sources.empty() && invocation().config.caches.empty()) {
    throw Error("--stage: there is no cache, because 'cache' is not set in lockstep.conf");
  }
  if (invocation().config.check_sources) check_sources(settings.sources, kSourceCheckTime, in_job);
  return settings;
}

}  // namespace

Settings settings_or_exit(bool in_job) {
  // A mistake in the administrator's file must not stop jobs without options.
  if (!invocation().has_options() && !invocation().config_error.empty()) return {};
  try {
    Settings settings = checked_settings(in_job);
    if (!invocation().config.enabled && invocation().has_options()) {
      say("the administrator has switched the plugin off; its options have no effect");
    }
    return settings;
  } catch (const Error& error) {
    say(error.what());
    ::_exit(1);
  }
}

void exit_if_needed(const std::string& what) {
  // After a failed init Slurm refuses our options on the command line, but knows nothing of the variables.
  bool needed = invocation().has_options();
  for (const OptionRow& row : option_table()) {
    for (const std::string& name :
         {std::string(row.variable), passed_variable(option_variable(row.option))}) {
      needed = needed || std::getenv(name.c_str()) != nullptr;
    }
  }
  if (!needed) return log(what);
  say(what);
  ::_exit(1);
}

namespace allocator {

void init(spank_t spank, int argc, char** argv) {
  load_config(argc, argv, "");
  options_from_environment();
  register_options(spank, false);
}

void init_post_opt(spank_t spank) {
  const Settings settings = settings_or_exit(false);
  if (settings.sources.empty()) return;
  // The job gets absolute paths, since relative ones mean something else on the nodes. sbatch sends the variables in
  // Slurm's list; salloc's command inherits this process's variables.
  const std::string name = option_variable(Option::stage);
  const std::string value = join_sources(settings.sources);
  spank_job_control_setenv(spank, name.c_str(), value.c_str(), 1);
  ::setenv(name.c_str(), value.c_str(), 1);
  if (std::getenv(passed_variable(name).c_str()) != nullptr)
    ::setenv(passed_variable(name).c_str(), value.c_str(), 1);
}

}  // namespace allocator
}  // namespace lockstep::spank
