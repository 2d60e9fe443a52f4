#include "staging/pack/formats/data_file.h"

#include <fcntl.h>

#include <algorithm>

#include "common/error.h"
#include "staging/pack/file_status.h"

namespace lockstep::pack {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;

}  // namespace

DataFile::DataFile(std::filesystem::path path) : path_(std::move(path)) {
  const struct stat status = status_of_file(path_);
  size_ = static_cast<std::uint64_t>(status.st_size);
  modified_ns_ = pack::modified_ns(status);
}

std::string DataFile::where(std::uint64_t offset, std::size_t sample) const {
  return fmt::format("{}, sample {}, offset {}", path_.string(), sample, offset);
}

int DataFile::fd() const {
  std::call_once(opened_, [&] { fd_ = open_file(path_, O_RDONLY); });
  return fd_.get();
}

void DataFile::read(std::uint64_t offset, std::span<std::byte> into, std::size_t sample) const {
  const ssize_t got = read_at(fd(), into, offset);
  if (got < 0) fail_errno("cannot read {}", where(offset, sample));
  if (static_cast<std::size_t>(got) < into.size())
    fail("{}: the file was truncated while in use", where(offset, sample));
}

std::span<const std::byte> DataFile::view(std::uint64_t offset, std::uint64_t bytes,
                                          std::size_t sample) const {
  if (offset > size_ || bytes > size_ - offset)
    fail("{}: its {} bytes extend past the end of the file at {}", where(offset, sample), bytes, size_);
  std::call_once(mapped_, [&] { mapping_ = MappedFile(fd(), size_, path_); });
  return mapping_.bytes().subspan(offset, bytes);
}

std::string DataFile::read_some(std::uint64_t offset, std::size_t bytes) const {
  std::string text(offset >= size_ ? 0 : std::min<std::uint64_t>(bytes, size_ - offset), '\0');
  const ssize_t got = read_at(fd(), std::as_writable_bytes(std::span(text)), offset);
  if (got < 0) fail_errno("cannot read {} at offset {}", path_.string(), offset);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

std::span<const std::byte> Stream::next() {
  const std::uint64_t want = std::min<std::uint64_t>(kBlock, file_.size() - at_);
  if (want == 0) return {};
  block_ = file_.read_some(at_, want);
  if (block_.size() < want)
    fail("{} was truncated to {} bytes while in use", file_.path().string(), at_ + block_.size());
  at_ += want;
  progress_(want);
  return std::as_bytes(std::span(block_));
}

std::span<const std::byte> Cursor::some(std::uint64_t max) {
  if (block_.empty()) block_ = next_();
  if (block_.empty()) fail("the data end after {} bytes, {} expected", offset_, size_);
  const auto piece = block_.first(std::min<std::uint64_t>(max, block_.size()));
  block_ = block_.subspan(piece.size());
  offset_ += piece.size();
  return piece;
}

void Cursor::take(std::span<std::byte> into) {
  while (!into.empty()) {
    const auto piece = some(into.size());
    std::copy(piece.begin(), piece.end(), into.begin());
    into = into.subspan(piece.size());
  }
}

}  // namespace lockstep::pack
