#include "staging/pack/formats/lmdb_tree.h"

#include <cstring>
#include <string>
#include <string_view>

#include "common/error.h"
#include "staging/pack/formats/data_file.h"

namespace lockstep::pack {
namespace {

constexpr std::uint64_t kPageHeader = 16;
constexpr std::uint64_t kNodeHeader = 8;
constexpr std::uint64_t kMetaBytes = 152;  // of the meta page, including the transaction number
constexpr std::uint64_t kNoRoot = ~std::uint64_t{0};
constexpr int kMaxLevels = 32;

enum PageFlag : std::uint16_t { branch_page = 0x01, leaf_page = 0x02, overflow_page = 0x04 };
enum NodeFlag : std::uint16_t { big_value = 0x01, database_value = 0x02, several_values = 0x04 };

template <typename T>
T number_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  T number{};
  std::memcpy(&number, bytes.data() + offset, sizeof(T));
  return number;
}

/// The content of the newer one of the two meta pages.
struct Meta {
  std::uint64_t page_bytes;
  std::uint64_t root;
  std::uint64_t last_page;
};

bool is_meta(std::span<const std::byte> bytes) {
  return bytes.size() >= kMetaBytes && is_lmdb(bytes);
}

std::uint64_t page_bytes_of(std::span<const std::byte> first, const std::filesystem::path& name) {
  if (!is_meta(first)) fail("{}: not an LMDB database", name.string());
  const auto version = number_at<std::uint32_t>(first, 20);
  if (version != 1) fail("{}: version {} of LMDB's files is not supported, only 1", name.string(), version);
  const auto bytes = number_at<std::uint32_t>(first, 40);
  if (bytes < 256 || bytes > 65536 || (bytes & (bytes - 1)) != 0)
    fail("{}: damaged LMDB database: its pages have {} bytes", name.string(), bytes);
  return bytes;
}

/// The meta page with the greater transaction number is valid.
Meta meta_of(std::span<const std::byte> first, std::span<const std::byte> second, std::uint64_t page_bytes,
             const std::filesystem::path& name) {
  if (!is_meta(second)) fail("{}: truncated: its second page is missing or damaged", name.string());
  const bool newer = number_at<std::uint64_t>(second, 144) > number_at<std::uint64_t>(first, 144);
  const auto meta = newer ? second : first;
  return {page_bytes, number_at<std::uint64_t>(meta, 128), number_at<std::uint64_t>(meta, 136)};
}

class TreeWalk {
 public:
  TreeWalk(std::span<const std::byte> file, const std::filesystem::path& name) : file_(file), name_(name) {
    const std::uint64_t page = page_bytes_of(file, name);
    if (file.size() < page) fail("{}: truncated to {} bytes", name.string(), file.size());
    meta_ = meta_of(file, file.subspan(page), page, name);
  }

  std::vector<LmdbEntry> run() {
    if (meta_.root != kNoRoot) visit(meta_.root, 0);
    return std::move(entries_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void damaged(std::uint64_t page, fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}, page {} (offset {}), sample {}: the database is damaged: {}", name_.string(), page,
         page * meta_.page_bytes, entries_.size(), fmt::format(format, std::forward<Args>(args)...));
  }

  /// The bytes of the file from a page on; at least one page.
  std::span<const std::byte> from_page(std::uint64_t page) const {
    if (page >= file_.size() / meta_.page_bytes)
      damaged(page, "the file was truncated to {} bytes", file_.size());
    return file_.subspan(page * meta_.page_bytes);
  }

  void visit(std::uint64_t page, int level) {
    // A tree that visits more pages than the file has visits one of them twice.
    if (++visited_ > file_.size() / meta_.page_bytes || level > kMaxLevels)
      damaged(page, "the tree has a loop");
    const auto bytes = from_page(page).first(meta_.page_bytes);
    const auto flags = number_at<std::uint16_t>(bytes, 10);
    const auto lower = number_at<std::uint16_t>(bytes, 12);
    if (number_at<std::uint64_t>(bytes, 0) != page || lower < kPageHeader || lower > bytes.size() ||
        lower % 2 != 0)
      damaged(page, "it is not the page that the tree refers to");
    const bool branch = (flags & branch_page) != 0;
    if (!branch && (flags & leaf_page) == 0) damaged(page, "its type is unknown");
    const std::uint64_t nodes = (lower - kPageHeader) / 2;
    for (std::uint64_t n = 0; n < nodes; ++n) {
      const auto at = number_at<std::uint16_t>(bytes, kPageHeader + 2 * n);
      if (at < lower || at + kNodeHeader > bytes.size()) damaged(page, "entry {} lies outside the page", n);
      if (branch) {
        visit(child_of(bytes.subspan(at)), level + 1);
      } else {
        add_entry(page, bytes, at);
      }
    }
  }

  static std::uint64_t child_of(std::span<const std::byte> node) {
    return number_at<std::uint32_t>(node, 0) | std::uint64_t{number_at<std::uint16_t>(node, 4)} << 32;
  }

  void add_entry(std::uint64_t page, std::span<const std::byte> bytes, std::uint64_t at) {
    const auto node = bytes.subspan(at);
    const auto flags = number_at<std::uint16_t>(node, 4);
    const std::uint64_t begin = page * meta_.page_bytes + at;
    LmdbEntry entry{.key = begin + kNodeHeader,
                    .value = 0,
                    .value_bytes = number_at<std::uint32_t>(node, 0),
                    .key_bytes = number_at<std::uint16_t>(node, 6)};
    const std::uint64_t value = kNodeHeader + entry.key_bytes;
    const std::uint64_t in_page = (flags & big_value) != 0 ? sizeof(std::uint64_t) : entry.value_bytes;
    if (value > node.size() || in_page > node.size() - value)
      damaged(page, "the value lies outside the page");
    if ((flags & (database_value | several_values)) != 0)
      refuse_database(entry, (flags & several_values) != 0);
    entry.value = (flags & big_value) != 0
                      ? value_page(number_at<std::uint64_t>(node, value), entry.value_bytes)
                      : begin + value;
    entries_.push_back(entry);
  }

  [[noreturn]] void refuse_database(const LmdbEntry& entry, bool several) const {
    const std::string_view key(reinterpret_cast<const char*>(file_.data() + entry.key), entry.key_bytes);
    if (several) fail("{}: the key '{}' has several values, which is not supported", name_.string(), key);
    fail("{}: it holds the named database '{}': only the main database is supported", name_.string(), key);
  }

  /// Where a value that has its own pages begins.
  std::uint64_t value_page(std::uint64_t page, std::uint64_t bytes) const {
    const auto value = from_page(page);
    if (bytes > value.size() - kPageHeader)
      damaged(page, "a value of {} bytes extends past the end of the file at {}: the file was truncated",
              bytes, file_.size());
    if (number_at<std::uint64_t>(value, 0) != page ||
        (number_at<std::uint16_t>(value, 10) & overflow_page) == 0)
      damaged(page, "it is not the value that the tree refers to");
    return page * meta_.page_bytes + kPageHeader;
  }

  std::span<const std::byte> file_;
  const std::filesystem::path& name_;
  Meta meta_{};
  std::uint64_t visited_ = 0;
  std::vector<LmdbEntry> entries_;
};

}  // namespace

bool is_lmdb(std::span<const std::byte> first_bytes) {
  constexpr std::uint32_t kMetaMagic = 0xbeefc0deU;
  return first_bytes.size() >= kPageHeader + sizeof(kMetaMagic) &&
         number_at<std::uint32_t>(first_bytes, kPageHeader) == kMetaMagic;
}

std::vector<LmdbEntry> read_lmdb(std::span<const std::byte> file, const std::filesystem::path& name) {
  return TreeWalk(file, name).run();
}

void check_lmdb(const std::filesystem::path& file) {
  const DataFile data(file);
  const std::string first = data.read_some(0, kMetaBytes);
  const std::uint64_t page = page_bytes_of(std::as_bytes(std::span(first)), file);
  const std::string second = data.read_some(page, kMetaBytes);
  const Meta meta = meta_of(std::as_bytes(std::span(first)), std::as_bytes(std::span(second)), page, file);
  if (meta.last_page < data.size() / page) return;
  // The missing last pages may be free pages that were never written; only the tree tells.
  read_lmdb(data.view(0, data.size(), 0), file);
}

}  // namespace lockstep::pack
