// Splits a text at a separator, and joins texts.
//
// Threads: safe from any.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

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

}  // namespace lockstep
