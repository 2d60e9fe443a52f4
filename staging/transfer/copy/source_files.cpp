#include "staging/transfer/copy/source_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "common/pending_calls.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/copy/source_retry.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kMaxOpenSources = 96;

FileState state_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat {}", path.string());
  return FileState::of(status);
}

}  // namespace

SourceFiles::SourceFiles(FileSystem& system, std::filesystem::path folder,
                         const std::vector<ManifestFile>& files, const ChunkPlan& plan, Limit& limit,
                         std::chrono::milliseconds pause)
    : system_(system),
      folder_(std::move(folder)),
      files_(files),
      plan_(plan),
      limit_(limit),
      pause_(pause),
      open_files_(kMaxOpenSources, [this](std::size_t file) { return open(file); }) {
}

UniqueFd SourceFiles::open(std::size_t file) {
  const std::filesystem::path path = folder_ / files_[file].name;
  UniqueFd fd = system_.open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  const FileState now = state_of(fd.get(), path);
  const std::optional<FileState>& listed = files_[file].state;
  if (listed && listed->inode == 0 && !listed->fits(now)) fail_changed(path, "the first node");
  if (now.size != files_[file].size || (listed && !listed->fits(now))) fail_changed(path);
  // Each chunk is read as a whole. Read-ahead beyond it would fetch bytes that another node or thread reads.
  if (now.size > plan_.chunk_bytes()) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
  const std::lock_guard lock(mutex_);
  const auto [first, fresh] = first_.try_emplace(file, now);
  if (!fresh && !(first->second == now)) fail_changed(path);
  return fd;
}

void SourceFiles::read(std::size_t chunk, std::span<std::byte> into) {
  std::size_t at = 0;
  for (const Extent& extent : plan_.extents(chunk)) {
    // A stale handle stays stale: the next try opens the file again.
    retry([&] { read_extent(extent, into.subspan(at, extent.bytes)); },
          [&] { open_files_.drop(extent.file); });
    at += extent.bytes;
  }
}

void SourceFiles::retry(const std::function<void()>& work, const std::function<void()>& before_next) {
  try {
    retry_source(pause_, work, before_next);
  } catch (const SourceUnreachable&) {
    failed_ = true;
    throw;
  }
}

void SourceFiles::read_extent(const Extent& extent, std::span<std::byte> into) {
  const std::filesystem::path path = folder_ / files_[extent.file].name;
  const PendingCall call(path);
  const std::shared_ptr<const UniqueFd> fd = open_files_.get(extent.file);
  const auto offset = static_cast<off_t>(extent.offset);
  // Makes the kernel read the whole chunk at once instead of a few pages at a time.
  if (extent.bytes > (1U << 17U)) ::posix_fadvise(fd->get(), offset, extent.bytes, POSIX_FADV_WILLNEED);
  const std::uint64_t end = extent.offset + into.size();
  if (files_[extent.file].holes == 0) {
    read_range(fd->get(), extent, {extent.offset, end}, into);
  } else {
    std::fill(into.begin(), into.end(), std::byte{});
    for (ByteRange data{extent.offset, extent.offset}; data.end < end;) {
      data = next_data(fd->get(), data.end, end);
      read_range(fd->get(), extent, data, into.subspan(data.begin - extent.offset, data.end - data.begin));
    }
  }
  // No one on this node will read these pages of the source again.
  if (extent.bytes > 0) ::posix_fadvise(fd->get(), offset, extent.bytes, POSIX_FADV_DONTNEED);
  if (plan_.first_chunk(extent.file) != plan_.last_chunk(extent.file)) return;
  FileState first;
  {
    const std::lock_guard lock(mutex_);
    first = first_.at(extent.file);
  }
  if (!(state_of(fd->get(), path) == first)) fail_changed(path);
  open_files_.drop(extent.file);
  const std::lock_guard lock(mutex_);
  first_.erase(extent.file);
}

void SourceFiles::read_range(int fd, const Extent& extent, ByteRange range, std::span<std::byte> into) {
  const std::filesystem::path path = folder_ / files_[extent.file].name;
  limit_.take(into.size());
  for (std::size_t done = 0; done < into.size();) {
    const std::size_t got = system_.read_at(fd, into.subspan(done), range.begin + done, path);
    if (got == 0) fail_changed(path);
    done += got;
  }
  bytes_ += into.size();
}

void SourceFiles::check_unchanged(bool all) {
  std::vector<std::pair<std::size_t, FileState>> seen;
  {
    const std::lock_guard lock(mutex_);
    seen.assign(first_.begin(), first_.end());
    for (std::size_t file = 0; all && file < files_.size(); ++file) {
      if (files_[file].state && !first_.contains(file)) seen.emplace_back(file, *files_[file].state);
    }
  }
  parallel_for(seen.size(), kManyAtOnce, [&](std::size_t i) {
    const auto& [file, state] = seen[i];
    const std::filesystem::path path = folder_ / files_[file].name;
    struct stat status {};
    retry([&] {
      const PendingCall call(path);
      if (::stat(path.c_str(), &status) != 0) fail_errno("cannot stat {}", path.string());
    });
    if (!state.fits(FileState::of(status))) fail_changed(path);
  });
}

}  // namespace lockstep::transfer
