#include "staging/pack/write/ordered_loader.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

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
  return limit.rlim_cur - std::min<rlim_t>(limit.rlim_cur, OrderedLoader::kOtherDescriptors);
}

}  // namespace

OrderedLoader::OrderedLoader(std::filesystem::path folder, const std::vector<std::string>& files,
                             std::size_t first, int threads)
    : folder_(std::move(folder)),
      files_(files),
      window_(std::clamp<std::size_t>(free_descriptors() / 2, 1, kWindow)),
      max_threads_(static_cast<int>(std::clamp<std::size_t>(free_descriptors() / 2, 1, kMaxThreads))),
      may_grow_(threads <= 0),
      taken_(first),
      returned_(first) {
  // One thread is fastest for files in memory: several would wait for each other at every file.
  for (int i = 0; i < std::clamp(threads, 1, max_threads_); ++i) start_thread();
}

OrderedLoader::~OrderedLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  freed_.notify_all();
}

void OrderedLoader::start_thread() {
  threads_.emplace_back([this] { work(); });
}

std::optional<LoadedFile> OrderedLoader::next(const std::atomic<bool>* stop) {
  constexpr double kSlow = 300e-6;  // seconds for a small file; files in memory take less
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[returned_ % kWindow];
  // No file has been read ahead because all threads wait for a slow file system.
  if (!slot.ready && may_grow_ && load_seconds_ > kSlow && threads() < max_threads_) start_thread();
  while (!slot.ready) {
    if (stop != nullptr && stop->load()) return {};
    filled_.wait_for(lock, std::chrono::milliseconds(100));
  }
  if (stop != nullptr && stop->load()) return {};
  Slot done = std::exchange(slot, Slot());
  ++returned_;
  lock.unlock();
  freed_.notify_one();
  if (done.error) std::rethrow_exception(done.error);
  return std::move(done.file);
}

void OrderedLoader::work() {
  OpenFolder folder;
  std::unique_lock lock(mutex_);
  for (;;) {
    freed_.wait(lock, [&] { return stop_ || taken_ == files_.size() || taken_ < returned_ + window_; });
    if (stop_ || taken_ == files_.size()) return;
    const std::size_t number = taken_++;
    lock.unlock();
    const std::uint64_t begin = monotonic_ns();
    Slot slot = load_slot(files_[number], folder);
    const double seconds = seconds_between(begin, monotonic_ns());
    lock.lock();
    load_seconds_ += (seconds - load_seconds_) / 16;
    slots_[number % kWindow] = std::move(slot);
    if (number == returned_) filled_.notify_one();
  }
}

OrderedLoader::Slot OrderedLoader::load_slot(const std::string& path, OpenFolder& folder) const {
  Slot slot;
  slot.ready = true;
  try {
    slot.file = load(path, folder);
  } catch (...) {
    slot.error = std::current_exception();
  }
  return slot;
}

LoadedFile OrderedLoader::load(const std::string& path, OpenFolder& folder) const {
  const std::filesystem::path full = folder_ / path;
  LoadedFile file;
  file.path = path;
  file.fd = folder.open(folder_, path);
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
  return file;
}

}  // namespace lockstep::pack
