#include "examples/text_lm/vocabulary.h"

#include <algorithm>
#include <sstream>

#include "common/error.h"
#include "common/files.h"

namespace lockstep::text_lm {
namespace {

constexpr std::string_view kBlank = "\xe2\x96\x81";  // U+2581, SentencePiece's sign for a blank

std::vector<std::string> read_pieces(const std::filesystem::path& file) {
  std::vector<std::string> pieces;
  std::istringstream lines(read_text_file(file));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.rfind('\t');
    if (tab == std::string::npos)
      fail("{}, line {}: there is no tab after the piece", file.string(), pieces.size() + 1);
    pieces.push_back(line.substr(0, tab));
  }
  return pieces;
}

std::string with_blanks(const std::string& piece) {
  std::string text;
  for (std::size_t at = 0; at < piece.size();) {
    const bool blank = piece.compare(at, kBlank.size(), kBlank) == 0;
    text += blank ? ' ' : piece[at];
    at += blank ? kBlank.size() : 1;
  }
  return text;
}

/// "<0x0A>" is a byte that is not part of another piece.
bool is_byte(const std::string& piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece.back() == '>';
}

}  // namespace

Vocabulary::Vocabulary(const std::filesystem::path& file)
    : pieces_(read_pieces(file)), begin_of_text_(find("<s>", file)), end_of_text_(find("</s>", file)) {
}

int Vocabulary::find(const std::string& piece, const std::filesystem::path& file) const {
  const auto found = std::find(pieces_.begin(), pieces_.end(), piece);
  if (found == pieces_.end())
    fail("{} does not have the piece {}: use the tokenizer.vocab that prepare.sh made", file.string(), piece);
  return static_cast<int>(found - pieces_.begin());
}

std::string Vocabulary::text(std::span<const int> tokens) const {
  std::string text;
  for (const int token : tokens) {
    if (token == begin_of_text_ || token == end_of_text_) continue;
    const std::string& piece = pieces_.at(static_cast<std::size_t>(token));
    if (piece == "<n>") {
      text += '\n';
    } else if (is_byte(piece)) {
      text += static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
    } else {
      // SentencePiece adds a blank at the beginning of each line.
      const std::string plain = with_blanks(piece);
      const bool line_begins = text.empty() || text.back() == '\n';
      text += line_begins && plain.starts_with(' ') ? plain.substr(1) : plain;
    }
  }
  return text;
}

}  // namespace lockstep::text_lm
