#include "staging/transfer/exchange/chain_schedule.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::transfer {
namespace {

constexpr std::size_t kMaxHandedOver = 8;  // chunks at once

}  // namespace

ChainSchedule::ChainSchedule(ChainNode self, std::vector<std::uint32_t> readers,
                             const std::function<bool(std::size_t chunk)>& missing, std::size_t lanes)
    : self_(self),
      states_(readers.size(), State::here),
      readers_(std::move(readers)),
      origins_(readers_.size(), self.node),
      subscribed_(readers_.size()),
      cancelled_(lanes) {
  for (std::size_t chunk = 0; chunk < states_.size(); ++chunk) {
    if (!missing(chunk)) {
      arrivals_.push_back(chunk);
      continue;
    }
    ++remaining_;
    states_[chunk] = State::missing;
    if (readers_[chunk] == self_.place) make_own(chunk);
  }
}

void ChainSchedule::make_own(std::size_t chunk) {
  states_[chunk] = State::own;
  readers_[chunk] = self_.place;
  handed_over_.erase(chunk);
  (subscribed_[chunk] ? own_or_received_ : own_).insert(chunk);
}

std::optional<std::size_t> ChainSchedule::take_own() {
  std::unique_lock lock(mutex_);
  to_read_.wait(lock, [&] { return ended() || !own_.empty() || !own_or_received_.empty(); });
  if (ended()) return {};
  std::size_t chunk = 0;
  if (!own_.empty()) {
    chunk = *own_.begin();
    own_.erase(own_.begin());
  } else {
    chunk = *own_or_received_.rbegin();
    own_or_received_.erase(chunk);
    cancelled_[lane_of(chunk)].push_back(chunk);
    subscribed_[chunk] = false;
  }
  states_[chunk] = State::begun;
  ++begun_;
  return chunk;
}

void ChainSchedule::stored(std::size_t chunk, Node origin) {
  {
    const std::lock_guard lock(mutex_);
    if (states_[chunk] == State::here) return;
    if (states_[chunk] == State::begun) --begun_;
    states_[chunk] = State::here;
    origins_[chunk] = origin;
    subscribed_[chunk] = false;
    handed_over_.erase(chunk);
    arrivals_.push_back(chunk);
    if (--remaining_ == 0) end();
  }
  arrived_.notify_all();
}

// All chunks are here, or nobody needs them.
void ChainSchedule::end() {
  to_read_.notify_all();
  ended_.notify_all();
}

std::vector<std::byte> ChainSchedule::subscribe(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  cancelled_[lane].clear();
  // A new connection does not know what was handed over on the one before.
  const std::set<std::size_t> handed_over = handed_over_;
  for (const std::size_t chunk : handed_over) {
    if (lane_of(chunk) != lane) continue;
    handed_over_.erase(chunk);
    subscribed_[chunk] = true;
    if (states_[chunk] == State::missing) make_own(chunk);
  }
  std::vector<std::byte> wanted((states_.size() + 7) / 8);
  for (std::size_t chunk = lane; chunk < states_.size(); chunk += lanes()) {
    const bool own = states_[chunk] == State::own && !own_or_received_.contains(chunk);
    subscribed_[chunk] = !own && (states_[chunk] == State::missing || states_[chunk] == State::own);
    if (subscribed_[chunk]) wanted[chunk / 8] |= std::byte{1} << (chunk % 8);
  }
  to_read_.notify_all();
  return wanted;
}

std::vector<std::size_t> ChainSchedule::take_cancelled(std::size_t lane) {
  const std::lock_guard lock(mutex_);
  return std::exchange(cancelled_[lane], {});
}

bool ChainSchedule::begin_receiving(std::size_t chunk) {
  const std::lock_guard lock(mutex_);
  if (chunk >= states_.size()) return false;
  if (states_[chunk] != State::missing && states_[chunk] != State::own) return false;
  own_.erase(chunk);
  own_or_received_.erase(chunk);
  states_[chunk] = State::begun;
  ++begun_;
  return true;
}

void ChainSchedule::not_received(std::size_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    states_[chunk] = State::missing;
    --begun_;
    subscribed_[chunk] = true;
    if (readers_[chunk] == self_.place) make_own(chunk);
  }
  to_read_.notify_all();
}

void ChainSchedule::replace(std::uint32_t lost_place) {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t chunk = 0; chunk < states_.size(); ++chunk) {
      if (states_[chunk] != State::missing || readers_[chunk] != lost_place) continue;
      subscribed_[chunk] = true;  // the next predecessor is asked too
      make_own(chunk);
    }
  }
  to_read_.notify_all();
}

void ChainSchedule::read_all(std::size_t begin, std::size_t end) {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t chunk = begin; chunk < end; ++chunk) {
      if (states_[chunk] != State::missing) continue;
      subscribed_[chunk] = true;
      make_own(chunk);
    }
  }
  to_read_.notify_all();
}

void ChainSchedule::read_instead(std::size_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    if (chunk >= states_.size() || states_[chunk] != State::missing) return;
    subscribed_[chunk] = false;
    make_own(chunk);
  }
  to_read_.notify_all();
}

// The last chunk of the lane that this node must read and has not begun.
std::optional<std::size_t> ChainSchedule::last_own(std::size_t lane) const {
  for (const std::set<std::size_t>* const from : {&own_, &own_or_received_}) {
    const auto found =
        std::find_if(from->rbegin(), from->rend(), [&](std::size_t chunk) { return lane_of(chunk) == lane; });
    if (found != from->rend()) return *found;
  }
  return {};
}

std::vector<std::size_t> ChainSchedule::hand_over(std::size_t lane, std::uint32_t predecessor_place) {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> chunks;
  const std::size_t half = (own_.size() + own_or_received_.size()) / 2;
  while (chunks.size() < std::min(half, kMaxHandedOver)) {
    const std::optional<std::size_t> chunk = last_own(lane);
    if (!chunk) break;
    own_.erase(*chunk);
    own_or_received_.erase(*chunk);
    states_[*chunk] = State::missing;
    readers_[*chunk] = predecessor_place;
    subscribed_[*chunk] = true;
    std::erase(cancelled_[lane], *chunk);  // told after this, the predecessor would not send it
    handed_over_.insert(*chunk);
    chunks.push_back(*chunk);
  }
  return chunks;
}

std::optional<std::size_t> ChainSchedule::wait_for(std::size_t n, int milliseconds) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return n < arrivals_.size(); });
  return n < arrivals_.size() ? std::optional(arrivals_[n]) : std::nullopt;
}

void ChainSchedule::take_over(std::span<const std::size_t> chunks) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::size_t chunk : chunks) {
      if (chunk >= states_.size() || states_[chunk] != State::missing) continue;
      if (subscribed_[chunk]) cancelled_[lane_of(chunk)].push_back(chunk);
      subscribed_[chunk] = false;
      make_own(chunk);
    }
  }
  to_read_.notify_all();
}

bool ChainSchedule::idle() const {
  const std::lock_guard lock(mutex_);
  return !ended() && own_.empty() && own_or_received_.empty();
}

ChainSchedule::Node ChainSchedule::origin(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  return origins_[chunk];
}

bool ChainSchedule::is_here(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  return chunk < states_.size() && states_[chunk] == State::here;
}

bool ChainSchedule::all_begun() const {
  const std::lock_guard lock(mutex_);
  return begun_ == remaining_;
}

bool ChainSchedule::finished() const {
  const std::lock_guard lock(mutex_);
  return ended();
}

void ChainSchedule::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  end();
}

void ChainSchedule::wait_for_end(int milliseconds) const {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return ended(); });
}

void ChainSchedule::wait_until_end() const {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return ended(); });
}

}  // namespace lockstep::transfer
