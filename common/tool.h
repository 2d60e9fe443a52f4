// The conventions of all tools: --help, --version, --json; exit status 0: done, 1: the work failed, 2: the
// call is wrong; an error is one line on standard error.
//
// Threads: main's thread.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

class Tool {
 public:
  /// `name` is the command, `summary` one sentence for --help.
  Tool(std::string name, std::string summary);

  /// The command line, to add options to.
  CLI::App& app() { return app_; }

  /// Adds a verb. Add its options to the returned app; `work` runs after parsing.
  CLI::App& verb(const std::string& name, const std::string& summary, std::function<void()> work);

  /// True if --json was given: then print one object (or one per line), and nothing else, on standard output.
  bool json() const { return json_; }

  /// Prints one JSON value on a separate line.
  static void print(const nlohmann::json& value);

  /// Prints one line on standard error, after the tool's name. Escapes control characters, which names in it
  /// may contain. Ignores write errors.
  void say(const std::string& line) const noexcept;

  /// A check for options that name something: refuses an empty text, as an unset variable gives.
  static CLI::Validator named();

  /// Parses, runs the verb or, in tools without verbs, `work`, and returns main's exit code.
  int run(int argc, char** argv, const std::function<void()>& work = {});

 private:
  std::string wrong_call(const CLI::ParseError& error) const;

  std::string name_;
  CLI::App app_;
  std::function<void()> chosen_;
  bool json_ = false;
};

/// The version of this build, as in --version.
const char* version();

}  // namespace lockstep
