#include "common/tool.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>

#include "common/error.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

/// If a standard stream is closed, the next opened file would get its number, and output would be written
/// into that file. Opens /dev/null there instead, in a mode in which printing to a closed standard output
/// still fails.
void fill_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

/// Makes a file larger than `ulimit -f` an ordinary error instead of a fatal signal. Uses a handler, because
/// programs that a tool starts would inherit an ignored signal.
void survive_size_limit() {
  struct sigaction action {};
  ::sigaction(SIGXFSZ, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  action.sa_handler = [](int /*signal*/) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGXFSZ, &action, nullptr);
}

// CLI11's messages for PositiveNumber and NonNegativeNumber contain the largest double, in version 2.2 with all its 309
// digits. Removes that range; --help says POSITIVE and NONNEGATIVE.
std::string without_long_range(const std::string& text) {
  const auto range = text.find(" not in range ");
  const bool has_largest = range != std::string::npos && text.find("79769", range) != std::string::npos;
  return has_largest ? text.substr(0, range) + " is out of range" : text;
}

std::string text_of(const std::filesystem::filesystem_error& error) {
  const std::string reason = error.code().message();
  return error.path1().empty() ? reason : fmt::format("{}: {}", error.path1().string(), reason);
}

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

/// A script for Bash that completes the verbs and options of `app`, for a file in share/bash-completion/completions.
/// Other words are completed as file names.
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

}  // namespace

Tool::Tool(std::string name, std::string summary) : name_(std::move(name)), app_(std::move(summary), name_) {
  app_.set_version_flag("--version", fmt::format("{} {}", name_, version()));
  app_.add_flag("--json", json_, "Print JSON, and nothing else, on standard output");
  app_.set_help_all_flag("--help-all", "Print this help with the options of every verb and exit");
  app_.fallthrough();
}

CLI::App& Tool::verb(const std::string& name, const std::string& summary, std::function<void()> work) {
  app_.require_subcommand(1);
  CLI::App& sub = *app_.add_subcommand(name, summary);
  sub.set_help_all_flag();  // only the tool has it
  sub.callback([this, work = std::move(work)] { chosen_ = work; });
  return sub;
}

void Tool::print(const nlohmann::json& value) {
  // File names may contain bytes that are not UTF-8. They become the replacement character.
  fmt::print("{}\n", value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Tool::say(const std::string& line) const noexcept {
  try {
    const std::string text = fmt::format("{}: {}\n", name_, printable(line));
    std::fwrite(text.data(), 1, text.size(), stderr);
  } catch (const std::exception&) {
    // Out of memory: nothing can be printed.
  }
}

CLI::Validator Tool::named() {
  return {[](const std::string& text) { return text.empty() ? std::string("must not be empty") : ""; }, ""};
}

std::string Tool::wrong_call(const CLI::ParseError& error) const {
  const std::vector<std::string> unknown = app_.remaining();
  const bool verb_missing = app_.get_require_subcommand_min() > 0 && app_.get_subcommands().empty();
  if (verb_missing && !unknown.empty())
    return fmt::format("there is no verb '{}'; see {} --help", unknown.front(), name_);
  return fmt::format("{}; see {} --help", without_long_range(error.what()), name_);
}

int Tool::run(int argc, char** argv, const std::function<void()>& work) {
  fill_standard_streams();
  survive_size_limit();
  chosen_ = work;
  try {
    if (argc == 2 && std::string_view(argv[1]) == "--completion") {  // for packages; --help does not show it
      fmt::print("{}", completion_script(app_));
    } else {
      app_.parse(argc, argv);
      if (chosen_) chosen_();
    }
    if (std::fflush(stdout) != 0) fail_errno("cannot write to standard output");
    return 0;
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app_.exit(success);
    if (std::cout.flush()) return code;
    say("cannot write to standard output");
    return 1;
  } catch (const CLI::ParseError& error) {
    say(wrong_call(error));
    return 2;
  } catch (const UsageError& error) {
    say(error.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& error) {
    say(text_of(error));
    return 1;
  } catch (const std::system_error& error) {
    // fmt::print() does not say which file it could not write.
    say(std::ferror(stdout) != 0 ? "cannot write to standard output: " + error.code().message()
                                 : error.what());
    return 1;
  } catch (const std::exception& error) {
    say(error.what());
    return 1;
  }
}

const char* version() {
  return LOCKSTEP_VERSION;
}

}  // namespace lockstep
