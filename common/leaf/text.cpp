#include "common/leaf/text.h"

#include "common/leaf/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

void append_hex(std::string& text, unsigned byte) {
  text += kDigits[byte >> 4U];
  text += kDigits[byte & 15U];
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; };
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (result.size() >= max_bytes) {
      // Do not cut in the middle of a character.
      while (!result.empty() && follows(result.back())) result.pop_back();
      if (!result.empty() && static_cast<unsigned char>(result.back()) >= 0xc0U) result.pop_back();
      return result + "...";
    }
    if (at(i) < 0x20 || at(i) == 0x7f) {
      append_hex(result += "\\x", at(i));
    } else if (at(i) == 0xc2 && at(i + 1) >= 0x80 && at(i + 1) < 0xa0) {  // control characters as UTF-8
      append_hex(result += "\\u00", at(++i));
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  const auto unprintable = [](unsigned char byte) { return byte < 0x20 || byte >= 0x7f; };
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  const bool digits = std::any_of(text.begin(), text.end(), unprintable);
  std::string word = digits ? "$'" : "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (unprintable(byte)) {
      word += '\\';
      for (const unsigned shift : {6U, 3U, 0U}) word += static_cast<char>('0' + (byte >> shift & 7U));
    } else if (c == '\'' || (c == '\\' && digits)) {
      word += digits ? std::string("\\") + c : "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) append_hex(text, std::to_integer<unsigned>(byte));
  return text;
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const std::size_t high = kDigits.find(digits[i]);
    const std::size_t low = i + 1 < digits.size() ? kDigits.find(digits[i + 1]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos)
      throw Error("'" + printable(digits, 64) + "' is not a text of hexadecimal digits");
    bytes += static_cast<char>(high << 4U | low);
  }
  return bytes;
}

}  // namespace lockstep
