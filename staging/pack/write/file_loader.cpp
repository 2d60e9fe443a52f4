#include "staging/pack/write/file_loader.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/clock.h"
#include "common/error.h"
#include "staging/pack/digest.h"
#include "staging/pack/file_status.h"

namespace lockstep::pack {

UniqueFd OpenFolder::open(const std::filesystem::path& top, const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  if (!fd_ || parent != name_) {
    fd_.reset();
    fd_ = UniqueFd(::open((top / parent).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!fd_) fail_errno("cannot open {}", (top / path).string());
    name_ = parent;
  }
  // O_NONBLOCK, so that a FIFO does not block; regular files ignore it.
  UniqueFd fd(::openat(fd_.get(), path.c_str() + (slash == std::string::npos ? 0 : slash + 1),
                       O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ELOOP) fail("{} is a symbolic link: name the file it points to", (top / path).string());
  if (!fd) fail_errno("cannot open {}", (top / path).string());
  return fd;
}

namespace {

/// How many descriptors this process may open for files and folders.
std::size_t free_descriptors() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1U << 20U;
  return limit.rlim_cur - std::min<rlim_t>(limit.rlim_cur, FileLoader::kOtherDescriptors);
}

}  // namespace

FileLoader::FileLoader(std::filesystem::path folder, const std::vector<std::string>& files, std::size_t first,
                       int threads)
    : folder_(std::move(folder)),
      files_(files),
      max_threads_(static_cast<int>(std::clamp<std::size_t>(free_descriptors() / 2, 1, kMaxThreads))),
      may_grow_(threads <= 0),
      open_folders_(static_cast<std::size_t>(max_threads_)),
      claimed_(first),
      // One thread is fastest for files in memory: several would wait for each other at every file. A file in the
      // window may be open.
      prefetch_(
          {.threads = std::clamp(threads, 1, max_threads_),
           .ahead = std::clamp<std::size_t>(free_descriptors() / 2, 1, kWindow),
           .cpus = {}},
          [this] { return claimed_ < files_.size() ? std::optional(claimed_++) : std::nullopt; },
          [this](std::size_t number, int worker) { return load(files_[number], worker); }) {
}

std::optional<LoadedFile> FileLoader::next(const std::atomic<bool>* stop) {
  constexpr double kSlow = 300e-6;  // seconds for a small file; files in memory take less
  // No file has been read ahead because all threads wait for a slow file system.
  if (may_grow_ && load_seconds_ > kSlow && threads() < max_threads_ && !prefetch_.ready())
    prefetch_.add_thread();
  return prefetch_.next(stop);
}

LoadedFile FileLoader::load(const std::string& path, int worker) {
  const std::uint64_t begin = monotonic_ns();
  const std::filesystem::path full = folder_ / path;
  LoadedFile file;
  file.path = path;
  file.fd = open_folders_[static_cast<std::size_t>(worker)].open(folder_, path);
  struct stat status {};
  if (::fstat(file.fd.get(), &status) != 0) fail_errno("cannot stat {}", full.string());
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", full.string());
  file.size = static_cast<std::uint64_t>(status.st_size);
  file.modified_ns = modified_ns(status);
  file.changed_ns = changed_ns(status);
  if (file.size > kMaxLoaded) return file;

  file.content.resize(file.size + 1);  // one more, to notice a file that grew
  std::size_t done = 0;
  while (done < file.content.size()) {
    const ssize_t got = ::read(file.fd.get(), file.content.data() + done, file.content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read {}", full.string());
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
    if (done == file.size) break;
  }
  if (done != file.size)
    fail("{} changed while it was being packed: pack again when no program writes to it", full.string());
  file.content.resize(file.size);
  file.xxh3 = xxh3_64(file.content);
  file.fd.reset();
  load_seconds_ = load_seconds_ + (seconds_between(begin, monotonic_ns()) - load_seconds_) / 16;
  return file;
}

}  // namespace lockstep::pack
