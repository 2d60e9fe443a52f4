#include "staging/transfer/copy/local_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <set>

#include "common/error.h"
#include "staging/transfer/copy/holes.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

LocalFiles::LocalFiles(FileSystem& system, fs::path folder, std::vector<std::string> names,
                       const ChunkPlan& plan, std::vector<bool> sparse)
    : system_(system),
      folder_(std::move(folder)),
      folder_fd_(system_.open(folder_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)),
      names_(std::move(names)),
      plan_(plan),
      sparse_(std::move(sparse)),
      written_(kMaxOpen, [this](std::size_t file) { return create(file, 0); }),
      written_direct_(kMaxOpen, [this](std::size_t file) { return create(file, O_DIRECT); }),
      read_(kMaxOpen, [this](std::size_t file) {
        const fs::path path = fmt::format("/proc/self/fd/{}/{}", folder_fd_.get(), names_[file]);
        std::optional<UniqueFd> fd = system_.open_if_there(path, O_RDONLY | O_NOFOLLOW);
        return fd ? std::move(*fd) : UniqueFd();
      }) {
}

void LocalFiles::make_folders() {
  std::set<fs::path> folders;
  for (const std::string& name : names_) {
    for (fs::path parent = fs::path(name).parent_path(); !parent.empty(); parent = parent.parent_path()) {
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

bool LocalFiles::write_direct(const Extent& extent, const ChunkBuffers::Buffer& data) {
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

void LocalFiles::write(std::size_t chunk, const ChunkBuffers::Buffer& data) {
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

}  // namespace lockstep::transfer
