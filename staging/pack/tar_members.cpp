#include "staging/pack/tar_members.h"

#include <archive.h>
#include <archive_entry.h>

#include "common/error.h"

namespace lockstep::pack {

void TarMembers::Free::operator()(archive* reader) const {
  archive_read_free(reader);
}

TarMembers::TarMembers(const std::filesystem::path& shard) : shard_(shard), archive_(archive_read_new()) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  archive_read_support_format_tar(archive_.get());
  if (archive_read_open_filename(archive_.get(), shard.c_str(), kBlock) != ARCHIVE_OK) broken();
}

bool TarMembers::next() {
  const int code = archive_read_next_header(archive_.get(), &entry_);
  if (code == ARCHIVE_EOF) return false;
  if (code != ARCHIVE_OK) broken();
  return true;
}

std::string TarMembers::name() const {
  const char* name = archive_entry_pathname(entry_);
  std::string text = name == nullptr ? std::string() : name;
  if (text.starts_with("./")) text.erase(0, 2);
  return text;
}

bool TarMembers::folder() const {
  return archive_entry_filetype(entry_) == AE_IFDIR;
}

bool TarMembers::plain_file() const {
  return archive_entry_filetype(entry_) == AE_IFREG && archive_entry_hardlink(entry_) == nullptr &&
         archive_entry_symlink(entry_) == nullptr && archive_entry_sparse_count(entry_) == 0;
}

std::uint64_t TarMembers::size() const {
  return static_cast<std::uint64_t>(archive_entry_size(entry_));
}

// libarchive has consumed exactly the headers when it returns an entry.
std::uint64_t TarMembers::offset() const {
  return static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
}

void TarMembers::broken() const {
  const char* reason = archive_error_string(archive_.get());
  fail("{}: not a complete tar file: at offset {}: {}", shard_.string(),
       archive_filter_bytes(archive_.get(), 0), reason == nullptr ? "unreadable" : reason);
}

}  // namespace lockstep::pack
