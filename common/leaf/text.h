// Small functions on texts, also on those that other people or programs have chosen: numbers in them, parts of them.
//
// Threads: safe from any.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The number that the whole text is, in decimal digits; nullopt if it is something else or does not fit.
template <typename T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The parts of a text between the separators, at least one. They point into the text.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// The reverse of split().
template <typename Texts>
std::string join(const Texts& texts, std::string_view separator) {
  std::string whole;
  for (const auto& text : texts) {
    if (&text != &*texts.begin()) whole += separator;
    whole += text;
  }
  return whole;
}

/// Makes a text that anybody may have chosen, such as a file name, safe for a terminal and for one line: control
/// characters become "\x0a". A text longer than `max_bytes` is cut and ends in "...".
std::string printable(std::string_view text, std::size_t max_bytes = std::string_view::npos);

/// The text as one word for a shell, in quotes if it needs them. Bytes that cannot be printed as they are become the digits
/// that bash and zsh read in $'…'; a text cannot have zero bytes there.
std::string shell_word(std::string_view text);

/// Whether the text consists of 1 to 18 decimal digits, so that it fits a 64-bit number.
bool is_number(std::string_view text);

/// Two lower-case hexadecimal digits for each byte.
std::string to_hex(std::span<const std::byte> bytes);
/// The reverse. Throws Error if the text is something else.
std::string from_hex(std::string_view digits);

}  // namespace lockstep
