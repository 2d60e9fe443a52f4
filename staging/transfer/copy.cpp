#include "staging/transfer/copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;

struct stat status_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat {}", path.string());
  return status;
}

[[noreturn]] void changed(const std::filesystem::path& path) {
  fail("{} changed while it was copied; stage it again when nobody writes to it", path.string());
}

}  // namespace

pack::Digest copy_file(FileSystem& system, const std::filesystem::path& from, const std::filesystem::path& to,
                       const CopyOptions& options) {
  const UniqueFd source = system.open(from, O_RDONLY);
  const struct stat before = status_of(source.get(), from);
  if (static_cast<std::uint64_t>(before.st_size) != options.size) changed(from);
  ::posix_fadvise(source.get(), 0, 0, POSIX_FADV_SEQUENTIAL);

  const UniqueFd target = system.open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
  system.allocate(target.get(), options.size, to);
  pack::Hasher hasher;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kBlock, options.size));
  std::uint64_t done = 0;
  while (done < options.size) {
    if (options.stop && options.stop()) fail("{}: given up, another file failed", from.string());
    const auto want = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), options.size - done));
    const std::size_t got = system.read_at(source.get(), want, done, from);
    if (got == 0) changed(from);
    const auto block = want.first(got);
    hasher.update(block);
    system.write_at(target.get(), block, done, to);
    // Start writing out now, so that the sync at the end finds little left; and drop the source's pages,
    // which nobody on this node will read again.
    ::sync_file_range(target.get(), static_cast<off_t>(done), static_cast<off_t>(got), SYNC_FILE_RANGE_WRITE);
    ::posix_fadvise(source.get(), static_cast<off_t>(done), static_cast<off_t>(got), POSIX_FADV_DONTNEED);
    done += got;
    if (options.copied) options.copied(got);
  }
  const struct stat after = status_of(source.get(), from);
  if (after.st_size != before.st_size || after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
      after.st_mtim.tv_nsec != before.st_mtim.tv_nsec) {
    changed(from);
  }
  system.sync(target.get(), to);
  return hasher.digest();
}

}  // namespace lockstep::transfer
