#include "staging/transfer/copy/file_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::transfer {

std::uint64_t copy_file(FileSystem& system, Limit& limit, int from_fd, const std::filesystem::path& from,
                        const std::filesystem::path& to, std::uint64_t size) {
  constexpr std::uint64_t kBuffer = std::uint64_t{1} << 20U;
  const UniqueFd target = system.open(to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  std::vector<std::byte> buffer(std::min(size, kBuffer));
  std::uint64_t done = 0;
  while (done < size) {
    const auto want = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    limit.take(want.size());
    const std::size_t got = system.read_at(from_fd, want, done, from);
    if (got == 0) break;
    system.write_at(target.get(), want.first(got), done, to);
    done += got;
  }
  system.sync(target.get(), to);
  return done;
}

}  // namespace lockstep::transfer
