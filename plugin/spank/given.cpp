#include "plugin/spank/given.h"

#include <cstdlib>
#include <cstring>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

constexpr const char* kConfig = "/etc/lockstep/lockstep.conf";
constexpr const char* kLinkName = "lockstep-srun";
constexpr int kLink = static_cast<int>(kOptions);

// Slurm keeps the text of a value for later; it must be one that was really given.
bool is_value(const char* text) {
  return text != nullptr && *text != '\0' && std::strcmp(text, "(null)") != 0;
}

int take(int option, const char* text, int remote) {
  try {
    // On a node an empty value means that Slurm lost it on the way; where it was typed it is a mistake, which
    // settings() reports.
    if (!is_value(text) && remote != 0) return 0;
    const std::string value = is_value(text) ? text : "";
    if (option == kLink) {
      given().link = value;
    } else {
      given().values.at(static_cast<std::size_t>(option)) = value;
    }
    return 0;
  } catch (...) {
    return -1;
  }
}

void register_one(spank_t spank, const std::string& name, const char* arguments, const char* usage,
                  int value) {
  // Slurm copies what it is given.
  spank_option option{const_cast<char*>(name.c_str()),
                      const_cast<char*>(arguments),
                      const_cast<char*>(usage),
                      1,
                      value,
                      &take};
  const spank_err_t error = spank_option_register(spank, &option);
  if (error != ESPANK_SUCCESS) {
    log("cannot register --" + name + " (" + spank_strerror(error) +
        "); 'prefix' in lockstep.conf renames it");
  }
}

// Slurm's rule: what is no letter or digit becomes '_'.
std::string variable_of(const std::string& option) {
  std::string name = std::string("_SLURM_SPANK_OPTION_lockstep_") + option;
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

}  // namespace

Given& given() {
  static Given the;
  return the;
}

bool Given::any() const {
  for (const auto& value : values) {
    if (value) return true;
  }
  return false;
}

Settings Given::settings() const {
  if (!config_error.empty()) throw Refusal(config_error);
  Settings settings;
  for (const OptionRow& row : option_table()) {
    const auto index = static_cast<std::size_t>(row.option);
    const std::optional<std::string>& value = values.at(index) ? values.at(index) : config.defaults.at(index);
    if (value) apply(row.option, *value, settings);
    if (values.at(index) && config.enabled) check_allowed(config, row.option, settings, partition_known);
  }
  const bool has_ram = partition_known ? config.ram > 0 : config.ram_somewhere;
  if (config.enabled && settings.tier == "ram" && !settings.sources.empty() && !has_ram) {
    throw Refusal(
        "--stage-tier=ram: the administrator has given RAM no size ('ram' in lockstep.conf); use disk");
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
    given().config = read_config(path, partition);
    given().partition_known = !partition.empty();
    given().config_error.clear();
  } catch (const Refusal& refusal) {
    given().config_error = refusal.what();
    given().config.prefix = prefix_of_refused(path);
  }
}

void register_options(spank_t spank, bool link) {
  for (const OptionRow& row : option_table()) {
    register_one(spank, given().config.prefix + row.name, row.arguments, row.usage,
                 static_cast<int>(row.option));
  }
  if (link) register_one(spank, kLinkName, "...", "lockstep: set by srun itself, not for people", kLink);
}

std::string handed_on_name(Option option) {
  return variable_of(given().config.prefix + row_of(option).name);
}

std::string link_variable() {
  return "SLURM_SPANK_" + variable_of(kLinkName);
}

void options_from_environment() {
  for (const OptionRow& row : option_table()) {
    const char* const value = std::getenv(row.variable);
    if (value == nullptr || *value == '\0') continue;
    // What an outer command has handed on was given as an option, and an option wins.
    ::setenv(("SLURM_SPANK_" + handed_on_name(row.option)).c_str(), value, 0);
  }
}

}  // namespace lockstep::spank
