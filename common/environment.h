// The one place that reads environment variables.
//
// Threads: safe as long as no thread changes the environment.
#pragma once

#include <optional>
#include <string>

namespace lockstep::environment {

/// The variable's value; nothing where it is unset or empty.
std::optional<std::string> get(const char* name);

/// The variable's value, or `fallback` where it is unset or empty.
std::string get_or(const char* name, const std::string& fallback);

/// An integer variable; nothing where it is unset or empty. Throws UsageError naming it when it is no
/// integer.
std::optional<long> get_integer(const char* name);

}  // namespace lockstep::environment
