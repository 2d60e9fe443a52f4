#include "common/environment.h"

#include <cstdlib>

#include "common/error.h"
#include "common/leaf/text.h"

namespace lockstep::environment {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string get_or(const char* name, const std::string& fallback) {
  return get(name).value_or(fallback);
}

bool is_on(const char* name, bool fallback) {
  const std::string choice = get_or(name, fallback ? "on" : "off");
  if (choice != "on" && choice != "off") fail_usage("{}='{}' must be on or off", name, choice);
  return choice == "on";
}

std::optional<long> get_integer(const char* name) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const std::optional<long> value = to_number<long>(*text);
  if (!value) fail_usage("{}='{}' is not an integer", name, *text);
  return value;
}

}  // namespace lockstep::environment
