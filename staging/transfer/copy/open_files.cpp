#include "staging/transfer/copy/open_files.h"

namespace lockstep::transfer {

std::shared_ptr<const UniqueFd> OpenFiles::get(std::size_t file) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(file);
    if (found != entries_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second.place);
      return found->second.fd;
    }
  }
  auto fd = std::make_shared<const UniqueFd>(open_(file));
  std::shared_ptr<const UniqueFd> dropped;  // closed after the lock is released
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = entries_.try_emplace(file);
  if (!fresh) return entry->second.fd;
  recent_.push_front(file);
  entry->second = {fd, recent_.begin()};
  if (entries_.size() > max_open_) {
    const auto oldest = entries_.find(recent_.back());
    dropped = std::move(oldest->second.fd);
    entries_.erase(oldest);
    recent_.pop_back();
  }
  return fd;
}

void OpenFiles::drop(std::size_t file) {
  std::shared_ptr<const UniqueFd> dropped;
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(file);
  if (found == entries_.end()) return;
  dropped = std::move(found->second.fd);
  recent_.erase(found->second.place);
  entries_.erase(found);
}

}  // namespace lockstep::transfer
