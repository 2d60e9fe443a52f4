// Converts tokens into text, with the list of pieces that SentencePiece writes beside its model
// (tokenizer.vocab). It does not use SentencePiece's library, which would load libprotobuf-lite: together
// with LibTorch's libprotobuf the process would crash.
//
// Threads: const members may be called from any thread.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::text_lm {

class Vocabulary {
 public:
  /// The file has a line for each piece, with a tab and a score after it. Throws Error naming the file if it
  /// is another kind of file.
  explicit Vocabulary(const std::filesystem::path& file);

  int size() const { return static_cast<int>(pieces_.size()); }
  int begin_of_text() const { return begin_of_text_; }
  int end_of_text() const { return end_of_text_; }

  /// Returns the text, without the tokens for the beginning and the end.
  std::string text(std::span<const int> tokens) const;

 private:
  int find(const std::string& piece, const std::filesystem::path& file) const;

  std::vector<std::string> pieces_;
  int begin_of_text_;
  int end_of_text_;
};

}  // namespace lockstep::text_lm
