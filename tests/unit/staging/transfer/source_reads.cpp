#include "tests/unit/staging/transfer/source_reads.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace lockstep::transfer {

ssize_t SourceReads::call_pread(int fd, void* into, std::size_t size, off_t offset) {
  std::string file = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd)).string();
  if (!file.starts_with(folder_.string() + "/")) return FileSystem::call_pread(fd, into, size, offset);
  constexpr std::string_view kDeleted = " (deleted)";
  if (file.ends_with(kDeleted)) file.resize(file.size() - kDeleted.size());
  const SourceRead read{++reads_, file, static_cast<std::uint64_t>(offset)};
  if (before_) before_(read);
  const ssize_t got = FileSystem::call_pread(fd, into, size, offset);
  if (after_ && got > 0) after_(read, {static_cast<std::byte*>(into), static_cast<std::size_t>(got)});
  return got;
}

}  // namespace lockstep::transfer
