#include "staging/transfer/copy/chunk_work.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace lockstep::transfer {

ChunkWork::ChunkWork(std::size_t chunks, std::size_t members, std::size_t self,
                     const std::function<std::size_t(std::size_t chunk)>& owner,
                     const std::function<bool(std::size_t chunk)>& missing)
    : self_(self), queues_(members), own_(chunks), given_up_(members) {
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!missing(chunk)) continue;
    queues_[owner(chunk)].push_back(static_cast<std::uint32_t>(chunk));
    own_[chunk] = owner(chunk) == self_;
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
  const std::uint32_t chunk = queues_[member].front();
  queues_[member].pop_front();
  if (member != self_) asked_.insert(chunk);
  return chunk;
}

// Nobody waits for the answer any more: false where the chunk is read here since.
bool ChunkWork::answered(std::size_t chunk) {
  asked_.erase(static_cast<std::uint32_t>(chunk));
  return overtaken_.erase(static_cast<std::uint32_t>(chunk)) == 0;
}

bool ChunkWork::arrived(std::size_t chunk) {
  const std::lock_guard lock(mutex_);
  return answered(chunk) || remove(chunk, self_);  // none has begun to read it
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
    if (answered(chunk)) insert(chunk, given_up_[member] ? heir(chunk) : member);
  }
  changed_.notify_all();
}

// This node itself at the latest, which is never given up.
std::size_t ChunkWork::heir(std::size_t chunk) const {
  std::size_t member = chunk % queues_.size();
  while (given_up_[member]) member = (member + 1) % queues_.size();
  return member;
}

void ChunkWork::insert(std::size_t chunk, std::size_t member) {
  const auto number = static_cast<std::uint32_t>(chunk);
  if (member == self_) own_[chunk] = true;
  auto& queue = queues_[member];
  queue.insert(std::lower_bound(queue.begin(), queue.end(), number), number);
}

bool ChunkWork::remove(std::size_t chunk, std::size_t member) {
  auto& queue = queues_[member];
  const auto found = std::lower_bound(queue.begin(), queue.end(), chunk);
  if (found == queue.end() || *found != chunk) return false;
  queue.erase(found);
  return true;
}

void ChunkWork::moved(std::size_t chunk, std::size_t member) {
  {
    const std::lock_guard lock(mutex_);
    if (answered(chunk)) insert(chunk, given_up_[member] ? self_ : member);
  }
  changed_.notify_all();
}

void ChunkWork::give_up(std::size_t member) {
  {
    const std::lock_guard lock(mutex_);
    given_up_[member] = true;
    std::erase_if(ceded_, [&](const auto& entry) { return entry.second == member; });
    std::vector<std::deque<std::uint32_t>> shares(queues_.size());
    for (const std::uint32_t chunk : std::exchange(queues_[member], {})) {
      const std::size_t to = heir(chunk);
      own_[chunk] = to == self_;
      shares[to].push_back(chunk);
    }
    for (std::size_t to = 0; to < shares.size(); ++to) {
      std::deque<std::uint32_t> both;  // at once, since there may be many
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
  const std::deque<std::uint32_t>& own = queues_[self_];
  const std::size_t share = std::min(most, own.size() / 2);
  for (auto chunk = own.rbegin(); chunk != own.rend() && chunks.size() < share; ++chunk) {
    if (!ceded_here_.contains(*chunk) && !overtaken_.contains(*chunk)) chunks.push_back(*chunk);
  }
  for (const std::size_t chunk : chunks) {
    remove(chunk, self_);
    own_[chunk] = false;
    ceded_[static_cast<std::uint32_t>(chunk)] = static_cast<std::uint32_t>(to);
    insert(chunk, to);
  }
  return chunks;
}

std::optional<std::size_t> ChunkWork::asked_for(std::size_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    if (own_[chunk]) return {};
    const auto found = ceded_.find(static_cast<std::uint32_t>(chunk));
    if (found != ceded_.end()) return found->second;
    read_here(chunk);
    if (asked_.erase(static_cast<std::uint32_t>(chunk)) > 0) {
      overtaken_.insert(static_cast<std::uint32_t>(chunk));
      insert(chunk, self_);
    }
  }
  changed_.notify_all();
  return {};
}

// Takes it out of the queue of whoever was to be asked for it.
void ChunkWork::read_here(std::size_t chunk) {
  if (own_[chunk]) return;
  for (std::size_t member = 0; member < queues_.size(); ++member) {
    if (!remove(chunk, member)) continue;
    insert(chunk, self_);
    return;
  }
}

void ChunkWork::claim(std::size_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    ceded_.erase(static_cast<std::uint32_t>(chunk));
    ceded_here_.insert(static_cast<std::uint32_t>(chunk));
    read_here(chunk);
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
