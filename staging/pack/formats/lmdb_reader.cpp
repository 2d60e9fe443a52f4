// Reads the values of an LMDB database, in the order of their keys.

#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "common/leaf/text.h"
#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/lmdb_tree.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

std::string_view key_of(const DataFile& file, const LmdbEntry& entry) {
  const auto bytes = file.view(entry.key, entry.key_bytes, 0);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Entries with which programs describe the others, such as the pickled list of all keys.
bool describes_others(std::string_view key) {
  if (key.ends_with('\0')) key.remove_suffix(1);  // of a program in C
  constexpr std::array kKeys = {"length",     "len",          "num-samples", "num_samples", "size",
                                "nsamples",   "n_samples",    "keys",        "meta",        "meta_info",
                                "metadata",   "classes",      "nb_samples",  "num_data",    "num_examples",
                                "num_images", "count",        "total",       "shape",       "dtype",
                                "info",       "dataset_info", "class_to_idx"};
  return std::find(kKeys.begin(), kKeys.end(), lower_case(key)) != kKeys.end() ||
         (key.size() > 4 && key.starts_with("__") && key.ends_with("__"));
}

/// For --leave-out.
std::string pattern_of(std::string_view key) {
  std::string pattern;
  for (const char byte : key) {
    if (std::string_view("*?[\\").find(byte) != std::string_view::npos) pattern += '\\';
    pattern += byte == '\0' ? '?' : byte;
  }
  return pattern;
}

std::vector<LmdbEntry> entries_of(const fs::path& path, const std::vector<std::string>& leave_out) {
  const DataFile file(path);
  std::vector<LmdbEntry> entries = read_lmdb(file.view(0, file.size(), 0), path);
  if (leave_out.empty()) return entries;
  std::erase_if(entries, [&](const LmdbEntry& entry) {
    std::string key(key_of(file, entry));
    std::replace(key.begin(), key.end(), '\0', '?');  // no pattern can have it
    return std::any_of(leave_out.begin(), leave_out.end(), [&](const std::string& pattern) {
      return ::fnmatch(pattern.c_str(), key.c_str(), 0) == 0;
    });
  });
  return entries;
}

class LmdbReader : public ExtentReader {
 public:
  LmdbReader(const fs::path& folder, const std::string& file_name, std::vector<LmdbEntry> entries)
      : ExtentReader(folder, file_name, entries.size(), TokenType::none), entries_(std::move(entries)) {}

  std::string_view key(std::size_t i) const override { return key_of(file(), entries_[number(i)]); }

  std::vector<std::string> notes() const override {
    std::string keys;
    std::size_t found = 0;
    for (const LmdbEntry& entry : entries_) {
      const std::string_view key = key_of(file(), entry);
      if (!describes_others(key)) continue;
      ++found;
      keys += fmt::format(" --leave-out {}", shell_word(pattern_of(key)));
    }
    if (found == 0) return {};
    return {fmt::format("{} of the samples seem{} to describe the others and to be none: leave {} out with{}",
                        found, found == 1 ? "s" : "", found == 1 ? "it" : "them", keys)};
  }

  /// LMDB has no checksums: this checks the tree, and that all pages can be read.
  void verify(const ReadProgress& progress) const override {
    entries_of(file().path(), {});
    read_whole_file(progress);
  }

 protected:
  Extent extent(std::size_t i) const override { return {entries_[i].value, entries_[i].value_bytes}; }

 private:
  std::vector<LmdbEntry> entries_;
};

}  // namespace

std::unique_ptr<Reader> open_lmdb(const fs::path& folder, const std::string& file,
                                  const OpenOptions& options) {
  return std::make_unique<LmdbReader>(folder, file, entries_of(folder / file, options.leave_out));
}

}  // namespace lockstep::pack
