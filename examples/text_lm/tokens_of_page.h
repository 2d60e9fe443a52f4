// Converts the text of a page into tokens, and cuts long pages into pieces. text_lm_tokenise does this for
// each file.
//
// Threads: the functions may be called from any thread; they only read the processor.
#pragma once

#include <sentencepiece_processor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text_lm {

/// Returns the begin-of-text token, the tokens of each line followed by the newline token "<n>", and the
/// end-of-text token. Throws Error if the model does not have one of these, or has more than 65,536 pieces.
std::vector<std::uint16_t> tokens_of_page(const sentencepiece::SentencePieceProcessor& model,
                                          std::string_view text);

/// Cuts the tokens into the smallest number of runs of at most `max_tokens`. Their lengths differ by at most
/// one.
std::vector<std::vector<std::uint16_t>> cut(const std::vector<std::uint16_t>& tokens, std::size_t max_tokens);

/// The sample's key: the page's file name with dots replaced ("open.2" -> "open_2"), because a packed
/// sample's key ends at the first dot. If the page is cut, "-0001" and so on is appended.
std::string key_of_page(std::string_view file_name, std::size_t piece, std::size_t pieces);

}  // namespace lockstep::text_lm
