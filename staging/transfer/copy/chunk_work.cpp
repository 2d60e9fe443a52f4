#include "staging/transfer/copy/chunk_work.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace lockstep::transfer {

ChunkWork::ChunkWork(std::size_t chunks, std::size_t members, std::size_t self,
                     const std::function<std::size_t(std::size_t chunk)>& owner,
                     const std::function<bool(std::size_t chunk)>& missing)
    : self_(self), queues_(members), given_up_(members) {
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!missing(chunk)) continue;
    queues_[owner(chunk)].push_back(static_cast<std::uint32_t>(chunk));
    ++left_;
  }
}

std::optional<std::size_t> ChunkWork::take_own(const std::function<void()>& idle) {
  bool told = !idle;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (told) changed_.wait(lock, [&] { return stopped_ || left_ == 0 || !queues_[self_].empty(); });
      if (stopped_ || left_ == 0) return {};
      if (!queues_[self_].empty()) {
        const std::size_t chunk = queues_[self_].front();
        queues_[self_].pop_front();
        return chunk;
      }
    }
    idle();
    told = true;
  }
}

std::optional<std::size_t> ChunkWork::take(std::size_t member) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || queues_[member].empty()) return {};
  const std::size_t chunk = queues_[member].front();
  queues_[member].pop_front();
  return chunk;
}

void ChunkWork::done() {
  {
    const std::lock_guard lock(mutex_);
    --left_;
  }
  changed_.notify_all();
}

void ChunkWork::put_back(std::size_t chunk, std::size_t member) {
  {
    const std::lock_guard lock(mutex_);
    insert(chunk, given_up_[member] ? heir(chunk) : member);
  }
  changed_.notify_all();
}

// This node itself at the latest, which is never given up; at once where it may be the one whom the others
// ask, who would wait for each other.
std::size_t ChunkWork::heir(std::size_t chunk) const {
  if (no_heirs_ || expected_.contains(static_cast<std::uint32_t>(chunk))) return self_;
  std::size_t member = chunk % queues_.size();
  while (given_up_[member]) member = (member + 1) % queues_.size();
  return member;
}

void ChunkWork::insert(std::size_t chunk, std::size_t member) {
  const auto number = static_cast<std::uint32_t>(chunk);
  if (member == self_) ceded_.erase(number);
  auto& queue = queues_[member];
  queue.insert(std::lower_bound(queue.begin(), queue.end(), number), number);
}

void ChunkWork::moved(std::size_t chunk, std::size_t member) {
  {
    const std::lock_guard lock(mutex_);
    const auto away = ceded_.find(static_cast<std::uint32_t>(chunk));
    const std::size_t reader = member == self_ && away != ceded_.end() ? away->second : member;
    if (member == self_) expected_.insert(static_cast<std::uint32_t>(chunk));
    insert(chunk, given_up_[reader] ? self_ : reader);
  }
  changed_.notify_all();
}

void ChunkWork::give_up(std::size_t member, bool to_self) {
  {
    const std::lock_guard lock(mutex_);
    given_up_[member] = true;
    no_heirs_ = no_heirs_ || to_self;
    std::erase_if(ceded_, [&](const auto& entry) { return entry.second == member; });
    std::vector<std::deque<std::uint32_t>> shares(queues_.size());
    for (const std::uint32_t chunk : std::exchange(queues_[member], {})) shares[heir(chunk)].push_back(chunk);
    for (std::size_t to = 0; to < shares.size(); ++to) {
      std::deque<std::uint32_t> both;
      std::merge(queues_[to].begin(), queues_[to].end(), shares[to].begin(), shares[to].end(),
                 std::back_inserter(both));
      queues_[to] = std::move(both);
    }
  }
  changed_.notify_all();
}

std::vector<std::size_t> ChunkWork::cede(std::size_t most, std::size_t to) {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> chunks;
  if (given_up_[to]) return chunks;
  auto& own = queues_[self_];
  for (std::size_t share = std::min(most, own.size() / 2); share > 0; --share) {
    chunks.push_back(own.back());
    ceded_[own.back()] = static_cast<std::uint32_t>(to);
    queues_[to].push_back(own.back());
    own.pop_back();
  }
  std::sort(queues_[to].begin(), queues_[to].end());
  return chunks;
}

std::optional<std::size_t> ChunkWork::ceded_to(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  const auto found = ceded_.find(static_cast<std::uint32_t>(chunk));
  if (found == ceded_.end()) return {};
  return found->second;
}

void ChunkWork::claim(std::size_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    ceded_.erase(static_cast<std::uint32_t>(chunk));
    expected_.insert(static_cast<std::uint32_t>(chunk));
    for (std::size_t member = 0; member < queues_.size(); ++member) {
      auto& from = queues_[member];
      const auto found = std::find(from.begin(), from.end(), static_cast<std::uint32_t>(chunk));
      if (member == self_ || found == from.end()) continue;
      from.erase(found);
      insert(chunk, self_);
      break;
    }
  }
  changed_.notify_all();
}

std::optional<std::size_t> ChunkWork::slowest() const {
  const std::lock_guard lock(mutex_);
  std::optional<std::size_t> longest;
  for (std::size_t member = 0; member < queues_.size(); ++member) {
    if (member == self_ || queues_[member].size() < 2) continue;
    if (!longest || queues_[member].size() > queues_[*longest].size()) longest = member;
  }
  return longest;
}

bool ChunkWork::finished() const {
  const std::lock_guard lock(mutex_);
  return stopped_ || left_ == 0;
}

void ChunkWork::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

void ChunkWork::wait_for_change(int milliseconds) const {
  std::unique_lock lock(mutex_);
  if (stopped_ || left_ == 0) return;
  changed_.wait_for(lock, std::chrono::milliseconds(milliseconds));
}

}  // namespace lockstep::transfer
