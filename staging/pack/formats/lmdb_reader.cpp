// Reads the values of an LMDB database, in the order of their keys.

#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/lmdb_tree.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

std::vector<LmdbEntry> entries_of(const fs::path& path) {
  const DataFile file(path);
  return read_lmdb(file.view(0, file.size(), 0), path);
}

class LmdbReader : public ExtentReader {
 public:
  LmdbReader(const fs::path& folder, const std::string& file_name, std::vector<LmdbEntry> entries)
      : ExtentReader(folder, file_name, entries.size(), TokenType::none), entries_(std::move(entries)) {}

  std::string_view key(std::size_t i) const override {
    const LmdbEntry& entry = entries_[number(i)];
    const auto bytes = file().view(entry.key, entry.key_bytes, i);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// LMDB has no checksums: this checks the tree, and that all pages can be read.
  void verify(const ReadProgress& progress) const override {
    entries_of(file().path());
    read_whole_file(progress);
  }

 protected:
  Extent extent(std::size_t i) const override { return {entries_[i].value, entries_[i].value_bytes}; }

 private:
  std::vector<LmdbEntry> entries_;
};

}  // namespace

std::unique_ptr<Reader> open_lmdb(const fs::path& folder, const std::string& file) {
  return std::make_unique<LmdbReader>(folder, file, entries_of(folder / file));
}

}  // namespace lockstep::pack
