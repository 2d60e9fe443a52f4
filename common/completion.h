// Bash completion for a tool, from the options and verbs that it declares.
//
// Threads: safe from any.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep {

/// A script that completes the verbs and options of `app`, for a file in share/bash-completion/completions.
/// Other words are completed as file names.
std::string completion_script(const CLI::App& app);

}  // namespace lockstep
