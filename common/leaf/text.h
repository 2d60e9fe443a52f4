// Small functions on texts that other people or programs have chosen.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

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
