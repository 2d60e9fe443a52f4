// Tokens -> text, from the list of pieces that SentencePiece writes beside its model (tokenizer.vocab). Not
// through its library: that brings libprotobuf-lite into the process, which crashes together with the
// libprotobuf of LibTorch.
//
// Threads: const members are safe from any.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::text_lm {

class Vocabulary {
 public:
  /// A piece per line, followed by a tab and a score. Throws Error naming the file when it is no such list.
  explicit Vocabulary(const std::filesystem::path& file);

  int size() const { return static_cast<int>(pieces_.size()); }
  int begin_of_text() const { return begin_of_text_; }
  int end_of_text() const { return end_of_text_; }

  /// Blanks, newlines and bytes restored; marks of begin and end left out.
  std::string text(std::span<const int> tokens) const;

 private:
  int find(const std::string& piece, const std::filesystem::path& file) const;

  std::vector<std::string> pieces_;
  int begin_of_text_;
  int end_of_text_;
};

}  // namespace lockstep::text_lm
