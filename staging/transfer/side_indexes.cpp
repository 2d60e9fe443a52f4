#include "staging/transfer/side_indexes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "common/error.h"
#include "common/pending_calls.h"
#include "staging/pack/formats/side_index.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

std::uint64_t size_of_open(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat {}", path.string());
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

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

SideIndexes::SideIndexes(FileSystem& system, Limit& limit, const Manifest& manifest,
                         const std::vector<ManifestFile>& files)
    : system_(system), limit_(limit), manifest_(manifest), files_(files) {
  if (!pack::has_side_index(manifest.format)) return;
  sizes_.resize(files.size());
  parallel_for(files.size(), kManyAtOnce, [&](std::size_t f) {
    const PendingCall call(at_source(f));
    struct stat status {};
    if (::stat(at_source(f).c_str(), &status) == 0 && S_ISREG(status.st_mode))
      sizes_[f] = static_cast<std::uint64_t>(status.st_size);
  });
}

fs::path SideIndexes::at_source(std::size_t file) const {
  return pack::side_index_of(manifest_.folder / files_[file].name);
}

std::uint64_t SideIndexes::bytes() const {
  return std::accumulate(sizes_.begin(), sizes_.end(), std::uint64_t{0});
}

bool SideIndexes::keep_time(const ManifestFile& file, const fs::path& target) const {
  if (sizes_.empty() || !file.state) return false;
  return system_.set_modified(target / file.name, file.state->mtime_ns);
}

void SideIndexes::copy_one(std::size_t file, const fs::path& to) {
  const fs::path from = at_source(file);
  const std::uint64_t size = sizes_[file];
  const UniqueFd source = [&] {
    const PendingCall call(from);
    UniqueFd fd = system_.open(from, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (size_of_open(fd.get(), from) != size) fail("{}: it has changed", from.string());
    return fd;
  }();
  const std::uint64_t copied = copy_file(system_, limit_, source.get(), from, to, size);
  read_ += copied;
  if (copied != size) fail("{}: it has changed", from.string());
  if (!pack::is_side_index_for(to, files_[file].size)) fail("{}: damaged, or of other data", from.string());
}

std::uint64_t SideIndexes::copy(const fs::path& target) {
  std::atomic<std::uint64_t> bytes = 0;
  parallel_for(sizes_.size(), kManyAtOnce, [&](std::size_t f) {
    const fs::path to = pack::side_index_of(target / files_[f].name);
    system_.remove_all(to);  // an earlier copy's
    if (!keep_time(files_[f], target) || sizes_[f] == 0) return;
    try {
      copy_one(f, to);
      bytes += sizes_[f];
    } catch (const Error& error) {
      system_.remove_all(to);
      const std::lock_guard lock(mutex_);
      if (left_out_++ == 0) why_ = error.what();
    }
  });
  return bytes;
}

std::string SideIndexes::left_out() const {
  if (left_out_ == 0) return "";
  return fmt::format("{} beside the data {} not copied ({}); such files are read through when first opened",
                     left_out_ == 1 ? "1 index" : fmt::format("{} indexes", left_out_),
                     left_out_ == 1 ? "was" : "were", why_);
}

}  // namespace lockstep::transfer
