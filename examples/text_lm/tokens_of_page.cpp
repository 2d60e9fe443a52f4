#include "examples/text_lm/tokens_of_page.h"

#include <algorithm>

#include "common/error.h"

namespace lockstep::text_lm {

std::vector<std::uint16_t> tokens_of_page(const sentencepiece::SentencePieceProcessor& model,
                                          std::string_view text) {
  if (model.GetPieceSize() > 65'536) {
    fail(
        "the tokenizer has {} pieces, but 16-bit tokens allow at most 65536: train it with --vocab_size=65536 or less",
        model.GetPieceSize());
  }
  const int newline = model.PieceToId("<n>");
  if (model.bos_id() < 0 || model.eos_id() < 0 || newline == model.unk_id()) {
    fail(
        "the tokenizer does not have <s>, </s> or <n>: train it with --user_defined_symbols='<n>' and the default ids");
  }
  std::vector<std::uint16_t> tokens = {static_cast<std::uint16_t>(model.bos_id())};
  std::vector<int> line_tokens;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto status = model.Encode(absl::string_view(text.data(), end), &line_tokens);
    if (!status.ok()) fail("the tokenizer could not encode a line: {}", status.ToString());
    for (const int token : line_tokens) tokens.push_back(static_cast<std::uint16_t>(token));
    tokens.push_back(static_cast<std::uint16_t>(newline));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  tokens.push_back(static_cast<std::uint16_t>(model.eos_id()));
  return tokens;
}

std::vector<std::vector<std::uint16_t>> cut(const std::vector<std::uint16_t>& tokens,
                                            std::size_t max_tokens) {
  const std::size_t pieces = (tokens.size() + max_tokens - 1) / max_tokens;
  std::vector<std::vector<std::uint16_t>> runs;
  for (std::size_t i = 0; i < pieces; ++i) {
    const auto at = [&](std::size_t piece) {
      return tokens.begin() + static_cast<std::ptrdiff_t>(tokens.size() * piece / pieces);
    };
    runs.emplace_back(at(i), at(i + 1));
  }
  return runs;
}

std::string key_of_page(std::string_view file_name, std::size_t piece, std::size_t pieces) {
  std::string key(file_name);
  std::replace(key.begin(), key.end(), '.', '_');
  if (pieces > 1) key += fmt::format("-{:04}", piece + 1);
  return key;
}

}  // namespace lockstep::text_lm
