#include "common/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace lockstep {
namespace {

// In CLI11 a group without a name hides an option or a verb from --help.
std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

std::string options_of(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : app.get_options({})) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  return words;
}

std::string join(const std::vector<const CLI::App*>& verbs, const std::string& separator) {
  std::string words;
  for (const CLI::App* verb : verbs) words += (words.empty() ? "" : separator) + verb->get_name();
  return words;
}

constexpr const char* kScript = R"(# Bash completion for {0}, made by: {0} --completion
_{1}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} verb='' word words
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in
      {2}) verb=$word && break ;;
    esac
  done
  case $verb in
{3}    *) words='{4}' ;;
  esac
  # A list that begins with a dash has no verbs: a word without a dash is then a file.
  if [[ $current == -* || $words != -* ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"); fi
}}
complete -o default -F _{1} {0}
)";

}  // namespace

std::string completion_script(const CLI::App& app) {
  const std::vector<const CLI::App*> verbs = verbs_of(app);
  const std::string common = options_of(app);
  std::string cases;
  for (const CLI::App* verb : verbs)
    cases += fmt::format("    {}) words='{}{}' ;;\n", verb->get_name(), options_of(*verb).substr(1), common);
  const std::string first = verbs.empty() ? common.substr(1) : join(verbs, " ") + common;
  std::string function = app.get_name();
  std::replace(function.begin(), function.end(), '-', '_');
  return fmt::format(kScript, app.get_name(), function, verbs.empty() ? "''" : join(verbs, " | "), cases,
                     first);
}

}  // namespace lockstep
