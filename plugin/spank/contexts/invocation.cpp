#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plugin/spank/contexts/context.h"
#include "plugin/spank/process/report.h"

namespace lockstep::spank {
namespace {

constexpr const char* kConfig = "/etc/lockstep/lockstep.conf";
constexpr const char* kLinkName = "lockstep-srun";
constexpr int kLink = static_cast<int>(kOptions);

// Slurm passes "(null)" for an option without a value.
bool is_value(const char* text) {
  return text != nullptr && *text != '\0' && std::strcmp(text, "(null)") != 0;
}

int take(int option, const char* text, int remote) {
  try {
    // On a node, an empty value means that Slurm lost the value on the way. Elsewhere it is the user's
    // mistake, which settings() reports.
    if (!is_value(text) && remote != 0) return 0;
    const std::string value = is_value(text) ? text : "";
    if (option == kLink) {
      invocation().link = value;
    } else {
      invocation().values.at(static_cast<std::size_t>(option)) = value;
    }
    return 0;
  } catch (...) {
    return -1;
  }
}

void register_one(spank_t spank, const std::string& name, const char* arguments, const char* usage,
                  int value) {
  // Slurm copies the strings and does not change them.
  spank_option option{const_cast<char*>(name.c_str()),
                      const_cast<char*>(arguments),
                      const_cast<char*>(usage),
                      1,
                      value,
                      &take};
  const spank_err_t error = spank_option_register(spank, &option);
  if (error != ESPANK_SUCCESS) {
    log("cannot register --" + name + " (" + spank_strerror(error) +
        "): rename it by 'prefix' in lockstep.conf");
  }
}

// Slurm writes '_' for each character that is not a letter or a digit.
std::string variable_of(const std::string& option) {
  std::string name = std::string("_SLURM_SPANK_OPTION_lockstep_") + option;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

}  // namespace

Invocation& invocation() {
  static Invocation instance;
  return instance;
}

bool Invocation::has_options() const {
  return std::any_of(values.begin(), values.end(), [](const auto& value) { return value.has_value(); });
}

bool Invocation::stages() const {
  const auto& sources = values.at(static_cast<std::size_t>(Option::stage));
  return sources && *sources != "none";
}

Settings Invocation::settings() const {
  if (!config_error.empty()) throw Error(config_error);
  Settings settings;
  for (const OptionRow& row : option_table()) {
    const auto index = static_cast<std::size_t>(row.option);
    const std::optional<std::string>& value = values.at(index) ? values.at(index) : config.defaults.at(index);
    if (value) apply(row.option, *value, settings);
    if (values.at(index) && config.enabled) check_allowed(config, row.option, settings, partition_known);
  }
  const bool has_ram = partition_known ? config.ram > 0 : config.ram_somewhere;
  if (config.enabled && settings.tier == "ram" && !settings.sources.empty() && !has_ram) {
    throw Error(
        "--stage-tier=ram: there is no RAM tier, because 'ram' is not set in lockstep.conf; use disk");
  }
  return settings;
}

void load_config(int argc, char** argv, const std::string& partition) {
  std::string path = kConfig;
  for (int i = 0; i < argc; ++i) {
    constexpr std::string_view kKey = "conf=";
    const std::string_view argument = argv[i];
    if (argument.starts_with(kKey)) path = argument.substr(kKey.size());
  }
  try {
    invocation().config = read_config(path, partition);
    invocation().partition_known = !partition.empty();
    invocation().config_error.clear();
  } catch (const Error& error) {
    invocation().config_error = error.what();
    invocation().config.prefix = prefix_of_refused(path);
  }
}

void register_options(spank_t spank, bool link) {
  for (const OptionRow& row : option_table()) {
    register_one(spank, invocation().config.prefix + row.name, row.arguments, row.usage,
                 static_cast<int>(row.option));
  }
  if (link) register_one(spank, kLinkName, "...", "lockstep: set by srun, not for users", kLink);
}

std::string option_variable(Option option) {
  return variable_of(invocation().config.prefix + row_of(option).name);
}

std::string link_variable() {
  return variable_of(kLinkName);
}

std::string passed_variable(const std::string& name) {
  return "SLURM_SPANK_" + name;
}

void options_from_environment() {
  for (const OptionRow& row : option_table()) {
    const char* const value = std::getenv(row.variable);
    if (value == nullptr || *value == '\0') continue;
    // Keeps a value that an outer command passes on: it was an option there, which overrides variables.
    ::setenv(passed_variable(option_variable(row.option)).c_str(), value, 0);
  }
}

}  // namespace lockstep::spank
