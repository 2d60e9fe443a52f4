// text_lm_tokenise: converts a folder of text files into a folder of token files (unsigned, 16 bits,
// little-endian) for `lockstep-pack create --token-bytes 2`, one for each page or piece of a long page.

#include <fcntl.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "examples/text_lm/tokens_of_page.h"

namespace fs = std::filesystem;
using namespace lockstep;

namespace {

struct Options {
  fs::path model;
  fs::path out;
  fs::path pages;
  std::size_t max_tokens = 1024;
};

std::vector<fs::path> files_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  if (error) fail("cannot read {}: {}", folder.string(), error.message());
  if (files.empty()) fail("{} does not contain any files", folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

void write_tokens(const fs::path& path, const std::vector<std::uint16_t>& tokens) {
  static_assert(std::endian::native == std::endian::little);
  const UniqueFd file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  write_all(file.get(), {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0])},
            path);
}

void tokenise(const Options& options, bool json) {
  sentencepiece::SentencePieceProcessor model;
  if (const auto status = model.Load(options.model.string()); !status.ok()) {
    fail("cannot load the tokenizer {}: {}", options.model.string(), status.ToString());
  }
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) fail("cannot create {}: {}", options.out.string(), error.message());

  const auto pages = files_in(options.pages);
  std::size_t samples = 0;
  std::size_t total = 0;
  for (const auto& page : pages) {
    const auto pieces =
        text_lm::cut(text_lm::tokens_of_page(model, read_text_file(page)), options.max_tokens);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto key = text_lm::key_of_page(page.filename().string(), i, pieces.size());
      write_tokens(options.out / (key + ".tokens"), pieces[i]);
      total += pieces[i].size();
    }
    samples += pieces.size();
  }
  if (json) {
    Tool::print({{"pages", pages.size()},
                 {"samples", samples},
                 {"tokens", total},
                 {"vocabulary", model.GetPieceSize()}});
  } else {
    fmt::print("{}: {} pages, {} samples, {} tokens, vocabulary of {}\n", options.pages.filename().string(),
               pages.size(), samples, total, model.GetPieceSize());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Tool tool("text_lm_tokenise", "Turn a folder of text files into a folder of token files, ready to pack.");
  tool.app().add_option("--model", options.model, "SentencePiece model")->required();
  tool.app()
      .add_option("--out", options.out, "Folder for the token files; created if it does not exist")
      ->required();
  tool.app()
      .add_option("--max-tokens", options.max_tokens, "Longer pages are cut into pieces of equal length")
      ->check(CLI::Range(2, 1 << 30))
      ->capture_default_str();
  tool.app().add_option("PAGES", options.pages, "Folder of text files in UTF-8")->required();
  return tool.run(argc, argv, [&] { tokenise(options, tool.json()); });
}
