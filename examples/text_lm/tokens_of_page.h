// Text of one page -> tokens, and long pages -> pieces. What text_lm_tokenise does to each file.
//
// Threads: functions are safe from any; the processor is only read.
#pragma once

#include <sentencepiece_processor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text_lm {

/// Begin of text, then each line's pieces followed by the newline piece "<n>", then end of text. Throws Error
/// when the model lacks one of these or has more than 65,536 pieces.
std::vector<std::uint16_t> tokens_of_page(const sentencepiece::SentencePieceProcessor& model,
                                          std::string_view text);

/// Cuts into the fewest runs of at most `max_tokens` tokens, of equal length give or take one.
std::vector<std::vector<std::uint16_t>> cut(const std::vector<std::uint16_t>& tokens, std::size_t max_tokens);

/// The sample's key: the page's file name with dots replaced, since a packed sample's key ends at the first
/// dot
/// ("open.2" -> "open_2"), and "-0001" and so on where the page is in pieces.
std::string key_of_page(std::string_view file_name, std::size_t piece, std::size_t pieces);

}  // namespace lockstep::text_lm
