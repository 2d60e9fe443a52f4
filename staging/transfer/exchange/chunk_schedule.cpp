#include "staging/transfer/exchange/chunk_schedule.h"

#include <algorithm>
#include <chrono>

namespace lockstep::transfer {

ChunkOwners::ChunkOwners(const std::vector<std::uint32_t>& nodes, const std::vector<std::uint32_t>& holders)
    : owners_(holders.empty() ? nodes : holders) {
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(others_),
               [&](std::uint32_t node) { return node != owners_[0]; });
}

std::uint32_t ChunkOwners::successor(std::size_t chunk) const {
  const std::size_t count = owners_.size();
  const std::size_t round = chunk / count;
  if (count > 1) return owners_[(chunk + 1 + round % (count - 1)) % count];
  return others_.empty() ? owners_[0] : others_[round % others_.size()];
}

ChunkSchedule::ChunkSchedule(std::size_t chunks, ChunkOwners owners, Node self, std::size_t nodes,
                             const std::function<bool(std::size_t chunk)>& missing)
    : owners_(std::move(owners)),
      self_(self),
      from_(chunks, self),
      taken_(chunks, true),
      next_(nodes),
      helper_end_(nodes),
      given_up_(nodes) {
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!missing(chunk)) continue;
    from_[chunk] = owners_.owner(chunk);
    taken_[chunk] = false;
    ++remaining_;
  }
}

std::optional<std::size_t> ChunkSchedule::take_own() {
  std::unique_lock lock(mutex_);
  std::optional<std::size_t> chunk;
  changed_.wait(lock, [&] { return ended() || (chunk = next(self_)).has_value(); });
  return chunk;
}

std::optional<std::size_t> ChunkSchedule::take(Node node) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return {};
  const std::optional<std::size_t> chunk = next(node);
  return chunk ? chunk : next_for_helper(node);
}

std::optional<std::size_t> ChunkSchedule::next(Node node) {
  for (std::size_t& chunk = next_[node]; chunk < from_.size(); ++chunk) {
    if (taken_[chunk] || from_[chunk] != node) continue;
    taken_[chunk] = true;
    return chunk++;
  }
  return {};
}

// Takes chunks from the end, because this node begins at the front.
std::optional<std::size_t> ChunkSchedule::next_for_helper(Node node) {
  for (std::size_t& end = helper_end_[node]; end > next_[self_]; --end) {
    const std::size_t chunk = end - 1;
    if (taken_[chunk] || from_[chunk] != self_) continue;
    if (owners_.owner(chunk) != self_ || owners_.successor(chunk) != node) continue;
    from_[chunk] = node;
    taken_[chunk] = true;
    return chunk;
  }
  return {};
}

void ChunkSchedule::done() {
  {
    const std::lock_guard lock(mutex_);
    --remaining_;
  }
  changed_.notify_all();
}

void ChunkSchedule::assign(std::size_t chunk, Node node) {
  from_[chunk] = node;
  taken_[chunk] = false;
  next_[node] = std::min(next_[node], chunk);
}

ChunkSchedule::Node ChunkSchedule::provider(std::size_t chunk) const {
  const Node owner = owners_.owner(chunk);
  if (!given_up_[owner]) return owner;
  const Node successor = owners_.successor(chunk);
  return given_up_[successor] ? self_ : successor;
}

void ChunkSchedule::put_back(std::size_t chunk, Node node) {
  {
    const std::lock_guard lock(mutex_);
    assign(chunk, given_up_[node] ? provider(chunk) : node);
  }
  changed_.notify_all();
}

void ChunkSchedule::refused(std::size_t chunk, Node node) {
  {
    const std::lock_guard lock(mutex_);
    const Node successor = owners_.successor(chunk);
    assign(chunk, node == successor || given_up_[successor] ? self_ : successor);
  }
  changed_.notify_all();
}

void ChunkSchedule::give_up(Node node) {
  {
    const std::lock_guard lock(mutex_);
    given_up_[node] = true;
    for (std::size_t chunk = next_[node]; chunk < from_.size(); ++chunk) {
      if (!taken_[chunk] && from_[chunk] == node) assign(chunk, provider(chunk));
    }
  }
  changed_.notify_all();
}

bool ChunkSchedule::expects(std::size_t chunk, Node asker) {
  {
    const std::lock_guard lock(mutex_);
    if (from_[chunk] == self_) return true;
    if (owners_.successor(chunk) != self_) return false;
    if (taken_[chunk] || asker != from_[chunk]) return true;
    assign(chunk, self_);
  }
  changed_.notify_all();
  return true;
}

bool ChunkSchedule::idle() const {
  const std::lock_guard lock(mutex_);
  return next_[self_] == from_.size();
}

void ChunkSchedule::help_from(Node node) {
  {
    const std::lock_guard lock(mutex_);
    if (node < helper_end_.size()) helper_end_[node] = from_.size();
  }
  changed_.notify_all();
}

ChunkSchedule::Node ChunkSchedule::from(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  return from_[chunk];
}

bool ChunkSchedule::finished() const {
  const std::lock_guard lock(mutex_);
  return ended();
}

void ChunkSchedule::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

void ChunkSchedule::wait_for_change(int milliseconds) const {
  std::unique_lock lock(mutex_);
  if (!ended()) changed_.wait_for(lock, std::chrono::milliseconds(milliseconds));
}

}  // namespace lockstep::transfer
