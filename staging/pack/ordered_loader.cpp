#include "staging/pack/ordered_loader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/error.h"
#include "staging/pack/digest.h"

namespace lockstep::pack {

OrderedLoader::OrderedLoader(std::filesystem::path folder, const std::vector<std::string>& files, int threads)
    : folder_(std::move(folder)), files_(files) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

OrderedLoader::~OrderedLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  freed_.notify_all();
}

LoadedFile OrderedLoader::next() {
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[handed_ % kWindow];
  filled_.wait(lock, [&] { return slot.ready; });
  Slot done = std::exchange(slot, Slot());
  ++handed_;
  lock.unlock();
  freed_.notify_one();
  if (done.error) std::rethrow_exception(done.error);
  return std::move(done.file);
}

void OrderedLoader::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    freed_.wait(lock, [&] { return stop_ || taken_ == files_.size() || taken_ < handed_ + kWindow; });
    if (stop_ || taken_ == files_.size()) return;
    const std::size_t number = taken_++;
    lock.unlock();
    Slot slot;
    slot.ready = true;
    try {
      slot.file = load(files_[number]);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
    slots_[number % kWindow] = std::move(slot);
    filled_.notify_one();
  }
}

LoadedFile OrderedLoader::load(const std::string& path) const {
  const std::filesystem::path full = folder_ / path;
  LoadedFile file;
  file.path = path;
  // O_NONBLOCK: a FIFO in its place must not block; regular files ignore it.
  file.fd = open_file(full, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (::fstat(file.fd.get(), &status) != 0) fail_errno("cannot stat {}", full.string());
  if (!S_ISREG(status.st_mode)) fail("{} is no regular file", full.string());
  file.size = static_cast<std::uint64_t>(status.st_size);
  if (file.size > kWhole) return file;

  file.content.resize(file.size + 1);  // one more, to see a file that grew
  std::size_t done = 0;
  while (done < file.content.size()) {
    const ssize_t got = ::read(file.fd.get(), file.content.data() + done, file.content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read {}", full.string());
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  if (done != file.size)
    fail("{} changed while it was packed; pack again when nobody writes to it", full.string());
  file.content.resize(file.size);
  file.xxh3 = xxh3_64(file.content);
  file.fd.reset();
  return file;
}

}  // namespace lockstep::pack
