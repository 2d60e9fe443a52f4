#include "staging/transfer/copy/holes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/leaf/unique_fd.h"

namespace lockstep::transfer {
namespace {

bool is_zero(std::span<const std::byte> bytes) {
  return bytes[0] == std::byte{} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

}  // namespace

ByteRange next_data(int fd, std::uint64_t begin, std::uint64_t end) {
  const off_t data = ::lseek(fd, static_cast<off_t>(begin), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? ByteRange{end, end} : ByteRange{begin, end};
  const std::uint64_t first = std::max(begin, static_cast<std::uint64_t>(data));
  if (first >= end) return {end, end};
  const off_t hole = ::lseek(fd, static_cast<off_t>(first), SEEK_HOLE);
  if (hole < 0 || static_cast<std::uint64_t>(hole) <= first) return {first, end};
  return {first, std::min(end, static_cast<std::uint64_t>(hole))};
}

std::uint64_t bytes_of_holes(const std::filesystem::path& file, const struct stat& status) {
  const auto size = static_cast<std::uint64_t>(status.st_size);
  // A file system that compresses also occupies less.
  if (size < kHoleBytes || static_cast<std::uint64_t>(status.st_blocks) * S_BLKSIZE >= size) return 0;
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) return 0;
  std::uint64_t stored = 0;
  for (std::uint64_t at = 0; at < size;) {
    const ByteRange data = next_data(fd.get(), at, size);
    stored += data.end - data.begin;
    at = data.end;
  }
  return size - stored;
}

std::size_t equal_blocks(std::span<const std::byte> bytes, bool& zero) {
  std::size_t length = 0;
  while (length < bytes.size()) {
    const auto block = bytes.subspan(length, std::min(kHoleBytes, bytes.size() - length));
    const bool now = is_zero(block);
    if (length == 0) zero = now;
    if (now != zero) break;
    length += block.size();
  }
  return length;
}

}  // namespace lockstep::transfer
