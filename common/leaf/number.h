// Reads a number from a text.
//
// Threads: safe from any.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace lockstep {

/// The number that the whole text is, in decimal digits; nullopt if it is something else or does not fit.
template <typename T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace lockstep
