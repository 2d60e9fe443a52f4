// The options of sbatch, salloc and srun: their names, their help, and the meaning of their values. Pure
// functions. The same parser reads values from a command line, an environment variable, the administrator's
// defaults and, inside slurmstepd, the network.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class Option { stage, stage_mode, stage_tier, stage_on_error, stage_verify, stage_batch, pin, metrics };
inline constexpr std::size_t kOptions = 8;

/// The value of --pin.
struct PinRequest {
  std::string policy = "off";    ///< auto, numa, cache, core or off
  std::optional<int> workers;    ///< CPUs for loader threads of each task
  std::optional<int> smt;        ///< hardware threads used per core
  std::string memory = "local";  ///< NUMA nodes of the memory: local, interleave or off
  bool explain = false;          ///< print where each task runs, and why
  bool on() const { return policy != "off"; }
};

/// The values of all options.
struct Settings {
  std::vector<std::string> sources;  ///< of --stage, as written; empty: no staging
  std::string mode = "block";
  std::string tier = "disk";
  std::string on_error = "fail";
  std::string verify = "quick";
  std::string batch = "yes";  ///< whether the batch step stages too
  PinRequest pin;
  std::string metrics = "off";
};

/// One option as users see it.
struct OptionRow {
  Option option;
  const char* name;       ///< without the dashes and the site's prefix
  const char* arguments;  ///< its values, short enough for one line of --help
  const char* usage;      ///< its help
  const char* variable;   ///< the environment variable with the same effect
  /// Its value in Settings; none for --stage and --pin, whose values are more than a word.
  std::string Settings::*word = nullptr;
};

/// All options, in the order of the enumeration.
const std::array<OptionRow, kOptions>& option_table();
const OptionRow& row_of(Option option);

/// Reads one option's value into `settings`. Throws Error naming the option, the value and the valid values.
void apply(Option option, std::string_view value, Settings& settings);

/// The words of an option that an administrator can allow or forbid: its values; for --pin the policies, for
/// --stage none.
std::vector<std::string_view> words_of(Option option);

/// The option's word in `settings`; "" for --stage.
std::string word_of(Option option, const Settings& settings);

/// The sources of a --stage value, split at commas; "\," is a comma in a name. "none" gives an empty list.
std::vector<std::string> split_sources(std::string_view value);

/// The reverse of split_sources().
std::string join_sources(const std::vector<std::string>& sources);

}  // namespace lockstep
