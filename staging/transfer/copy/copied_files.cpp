#include "staging/transfer/copy/copied_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>

#include "common/error.h"
#include "common/leaf/unique_fd.h"
#include "common/pending_calls.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

// Returns the length of the longest beginning of `bytes` that consists of blocks of kHoleBytes (the last one may be
// shorter) that all are zero, or that all are not. `zero`: which of the two.
std::size_t equal_blocks(std::span<const std::byte> bytes, bool& zero) {
  std::size_t length = 0;
  while (length < bytes.size()) {
    const auto block = bytes.subspan(length, std::min(kHoleBytes, bytes.size() - length));
    const bool now =
        block[0] == std::byte{} && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0;
    if (length == 0) zero = now;
    if (now != zero) break;
    length += block.size();
  }
  return length;
}

constexpr std::size_t kMaxOpen = 64;
constexpr std::size_t kSyncOneByOne = 64;  // more files than this are synced with their whole file system

// Whether the file system supports O_DIRECT, tried with an unnamed file. Some can open such a file but not write it.
bool takes_direct(FileSystem& system, const fs::path& folder) {
  alignas(ChunkBuffers::kAlignment) static constexpr std::byte kZeros[ChunkBuffers::kAlignment]{};
  try {
    const UniqueFd fd = system.open(folder, O_TMPFILE | O_WRONLY | O_DIRECT, 0600);
    system.write_at(fd.get(), kZeros, 0, folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

constexpr std::size_t kMaxOpenSources = 96;

}  // namespace

std::shared_ptr<const UniqueFd> OpenFiles::get(std::size_t file) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = files_.find(file); found != files_.end()) return found->second;
  }
  auto fd = std::make_shared<const UniqueFd>(open_(file));
  std::shared_ptr<const UniqueFd> dropped;  // closed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = files_.try_emplace(file, std::move(fd));
  fd = at->second;
  if (files_.size() > max_open_) {
    const auto lowest = at == files_.begin() ? std::next(at) : files_.begin();
    dropped = std::move(lowest->second);
    files_.erase(lowest);
  }
  return fd;
}

void OpenFiles::drop(std::size_t file) {
  std::shared_ptr<const UniqueFd> dropped;
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(file);
  if (found == files_.end()) return;
  dropped = std::move(found->second);
  files_.erase(found);
}

LocalFiles::LocalFiles(FileSystem& system, fs::path folder, const std::vector<ManifestFile>& files,
                       const ChunkPlan& plan)
    : system_(system),
      folder_(std::move(folder)),
      folder_fd_(system_.open(folder_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)),
      files_(files),
      plan_(plan),
      written_(kMaxOpen, [this](std::size_t file) { return create(file, 0); }),
      written_direct_(kMaxOpen, [this](std::size_t file) { return create(file, O_DIRECT); }),
      read_(kMaxOpen, [this](std::size_t file) {
        const fs::path path = fmt::format("/proc/self/fd/{}/{}", folder_fd_.get(), files_[file].name);
        std::optional<UniqueFd> fd = system_.open_if_there(path, O_RDONLY | O_NOFOLLOW);
        return fd ? std::move(*fd) : UniqueFd();
      }) {
}

void LocalFiles::make_folders() {
  std::set<fs::path> folders;
  for (const ManifestFile& file : files_) {
    for (fs::path parent = fs::path(file.name).parent_path(); !parent.empty();
         parent = parent.parent_path()) {
      if (!folders.insert(parent).second) break;
    }
  }
  for (const fs::path& folder : folders) system_.make_folder(folder_ / folder, 0700);
}

UniqueFd LocalFiles::create(std::size_t file, int flags) {
  // The file is read-only if an earlier copy had completed it and its bytes have changed since.
  const std::optional<struct stat> before = system_.status(path(file));
  if (before && (before->st_mode & S_IWUSR) == 0) system_.change_mode(path(file), 0600);
  UniqueFd fd = system_.open(path(file), O_WRONLY | O_CREAT | O_NOFOLLOW | flags, 0600);
  // Allocates its whole size at once: a full disk is noticed early, and parallel writers need not extend the
  // file one by one.
  if (is_sparse(file)) {
    system_.set_size(fd.get(), plan_.file_bytes(file), path(file));
  } else if (plan_.first_chunk(file) != plan_.last_chunk(file)) {
    system_.allocate(fd.get(), plan_.file_bytes(file), path(file));
  }
  return fd;
}

void LocalFiles::write_with_holes(int fd, const Extent& extent, std::span<const std::byte> data) {
  for (std::uint64_t offset = extent.offset; !data.empty();) {
    bool zero = false;
    const auto piece = data.first(equal_blocks(data, zero));
    // An earlier copy may have left other bytes there.
    if (!zero || !system_.make_hole(fd, offset, piece.size(), path(extent.file)))
      system_.write_at(fd, piece, offset, path(extent.file));
    offset += piece.size();
    data = data.subspan(piece.size());
  }
}

bool LocalFiles::write_direct(const Extent& extent, const LentChunk& data) {
  constexpr std::size_t kMask = ChunkBuffers::kAlignment - 1;
  constexpr std::uint32_t kWorthIt = 1U << 16U;
  if (is_sparse(extent.file) || extent.bytes < kWorthIt || (extent.offset & kMask) != 0) return false;
  std::call_once(direct_tried_, [this] { direct_ = takes_direct(system_, folder_); });
  if (!direct_) return false;
  const std::size_t whole = extent.bytes & ~kMask;
  system_.write_at(written_direct_.get(extent.file)->get(), data.bytes().first(whole), extent.offset,
                   path(extent.file));
  if (whole < extent.bytes) {  // the last page of the file is not a whole one
    system_.write_at(written_.get(extent.file)->get(), data.bytes().subspan(whole, extent.bytes - whole),
                     extent.offset + whole, path(extent.file));
    written_.drop(extent.file);
  }
  return true;
}

void LocalFiles::write(std::size_t chunk, const LentChunk& data) {
  const std::span<const Extent> extents = plan_.extents(chunk);
  std::size_t at = 0;
  for (const Extent& extent : extents) {
    if (at != 0 || !write_direct(extent, data)) {
      const std::shared_ptr<const UniqueFd> fd = written_.get(extent.file);
      const auto bytes = data.bytes().subspan(at, extent.bytes);
      if (is_sparse(extent.file)) {
        write_with_holes(fd->get(), extent, bytes);
      } else {
        system_.write_at(fd->get(), bytes, extent.offset, path(extent.file));
      }
      if (extent.bytes == plan_.file_bytes(extent.file)) {
        written_.drop(extent.file);
      } else {
        system_.begin_sync(fd->get(), extent.offset, extent.bytes, path(extent.file));
      }
    }
    at += extent.bytes;
  }
}

bool LocalFiles::read(std::size_t chunk, std::span<std::byte> into) {
  std::size_t at = 0;
  for (const Extent& extent : plan_.extents(chunk)) {
    const std::shared_ptr<const UniqueFd> fd = read_.get(extent.file);
    if (!*fd) {
      read_.drop(extent.file);
      return false;
    }
    for (std::size_t done = 0; done < extent.bytes;) {
      const std::size_t got = system_.read_at(fd->get(), into.subspan(at + done, extent.bytes - done),
                                              extent.offset + done, path(extent.file));
      if (got == 0) return false;
      done += got;
    }
    if (extent.bytes == plan_.file_bytes(extent.file)) read_.drop(extent.file);
    at += extent.bytes;
  }
  return true;
}

void LocalFiles::sync(const std::vector<std::uint32_t>& files) {
  if (files.size() > kSyncOneByOne) {
    system_.sync_all(folder_fd_.get(), folder_);
    return;
  }
  for (const std::uint32_t file : files) {
    const UniqueFd fd = system_.open(path(file), O_RDONLY | O_NOFOLLOW);
    system_.sync(fd.get(), path(file));
  }
}

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
  const FileState now = FileState::of(fd.get(), path);
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
  if (!(FileState::of(fd->get(), path) == first)) fail_changed(path);
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
