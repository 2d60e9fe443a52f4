// The one place that reads environment variables.
//
// Threads: safe as long as no thread changes the environment.
#pragma once

#include <optional>
#include <string>

namespace lockstep::environment {

/// The variable's value; nullopt if it is unset or empty.
std::optional<std::string> get(const char* name);

/// The variable's value, or `fallback` if it is unset or empty.
std::string get_or(const char* name, const std::string& fallback);

/// Whether the variable is "on"; `fallback` if it is unset or empty. Throws UsageError naming the variable if its value is
/// neither "on" nor "off".
bool is_on(const char* name, bool fallback);

/// The variable's value as an integer; nullopt if it is unset or empty. Throws UsageError naming the variable
/// if the value is not an integer.
std::optional<long> get_integer(const char* name);

}  // namespace lockstep::environment
