#include "common/environment.h"

#include <charconv>
#include <cstdlib>

#include "common/error.h"

namespace lockstep::environment {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string get_or(const char* name, const std::string& fallback) {
  return get(name).value_or(fallback);
}

std::optional<long> get_integer(const char* name) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  long value = 0;
  const char* end_of_text = text->data() + text->size();
  const auto [end, error] = std::from_chars(text->data(), end_of_text, value);
  if (error != std::errc() || end != end_of_text) fail_usage("{}='{}' is not an integer", name, *text);
  return value;
}

}  // namespace lockstep::environment
