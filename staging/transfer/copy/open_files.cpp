#include "staging/transfer/copy/open_files.h"

namespace lockstep::transfer {

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

}  // namespace lockstep::transfer
