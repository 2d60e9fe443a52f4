#include "staging/transfer/exchange/ring_node.h"

#include <algorithm>
#include <utility>

namespace lockstep::transfer {

ListRelay::ListRelay(const std::vector<From>& from) : lists_(from.size()) {
  for (std::size_t s = 0; s < from.size(); ++s) lists_[s].from = from[s];
}

std::optional<std::size_t> ListRelay::next_to_make() {
  for (std::size_t s = 0; s < lists_.size(); ++s) {
    List& list = lists_[s];
    if (list.from != From::here || list.making || list.complete()) continue;
    list.making = true;
    return s;
  }
  return {};
}

// The first pieces of what a lost node had made may have been passed on: the list is sent again.
void ListRelay::made(std::size_t source, std::uint64_t bytes) {
  List& list = lists_[source];
  list.total = list.here = bytes;
  list.sent.reset();
}

bool ListRelay::complete() const {
  return std::all_of(lists_.begin(), lists_.end(), [](const List& list) { return list.complete(); });
}

std::vector<std::size_t> ListRelay::wanted() const {
  std::vector<std::size_t> wanted;
  for (std::size_t s = 0; s < lists_.size(); ++s) {
    if (lists_[s].from == From::predecessor && !lists_[s].complete()) wanted.push_back(s);
  }
  return wanted;
}

bool ListRelay::arrived(std::size_t source, std::uint64_t offset, std::uint64_t bytes, std::uint64_t total) {
  if (source >= lists_.size()) return false;
  List& list = lists_[source];
  const bool continues = offset == 0 || (offset == list.here && list.total == total);
  if (list.from != From::predecessor || list.complete() || !continues || bytes > total ||
      offset > total - bytes)
    return false;
  if (offset == 0) list.sent.reset();
  list.total = total;
  list.here = offset + bytes;
  return true;
}

void ListRelay::predecessor_lost() {
  for (List& list : lists_) {
    if (!list.complete()) list.from = From::here;
  }
}

void ListRelay::successor_wants(std::size_t source) {
  if (source >= lists_.size()) return;
  lists_[source].asked = true;
  lists_[source].sent.reset();
}

bool ListRelay::can_send() const {
  return std::any_of(lists_.begin(), lists_.end(), [](const List& list) { return list.can_send(); });
}

std::optional<ListRelay::Piece> ListRelay::next_send() {
  for (std::size_t s = 0; s < lists_.size(); ++s) {
    List& list = lists_[s];
    if (!list.can_send()) continue;
    const std::uint64_t offset = list.sent.value_or(0);
    const Piece piece{s, offset, std::min(kPiece, list.here - offset), *list.total};
    list.sent = offset + piece.bytes;
    return piece;
  }
  return {};
}

namespace {

constexpr std::size_t kMaxHandedOver = 8;  // chunks at once

bool bit(std::span<const std::byte> bits, std::size_t i) {
  return i / 8 < bits.size() && (bits[i / 8] >> (i % 8) & std::byte{1}) == std::byte{1};
}

}  // namespace

RingNode::RingNode(std::uint32_t place, std::uint32_t nodes, std::vector<std::uint32_t> readers,
                   const std::function<bool(std::size_t chunk)>& missing)
    : alone_(nodes == 1),
      states_(readers.size(), State::here),
      asked_(readers.size()),
      wanted_(readers.size()) {
  for (std::size_t chunk = 0; chunk < states_.size(); ++chunk) {
    if (!missing(chunk)) {
      arrivals_.push_back(chunk);
      continue;
    }
    ++lacking_;
    states_[chunk] = State::missing;
    if (readers[chunk] != place && !alone_) continue;
    make_own(chunk);
    may_hand_over_.insert(chunk);
  }
}

void RingNode::make_own(std::size_t chunk) {
  states_[chunk] = State::own;
  own_.insert(chunk);
}

void RingNode::begin(std::size_t chunk) {
  own_.erase(chunk);
  may_hand_over_.erase(chunk);
  states_[chunk] = State::begun;
  ++begun_;
}

std::optional<std::size_t> RingNode::next_read() {
  if (own_.empty()) return {};
  const std::size_t chunk = *own_.begin();
  begin(chunk);
  if (asked_[chunk]) cancelled_.push_back(chunk);
  asked_[chunk] = false;
  return chunk;
}

std::vector<std::byte> RingNode::wanted() {
  cancelled_.clear();
  std::vector<std::byte> bits((size() + 7) / 8);
  for (std::size_t chunk = 0; chunk < size(); ++chunk) {
    asked_[chunk] = states_[chunk] == State::missing;
    if (asked_[chunk]) bits[chunk / 8] |= std::byte{1} << (chunk % 8);
  }
  return bits;
}

std::vector<std::size_t> RingNode::take_cancelled() {
  return std::exchange(cancelled_, {});
}

bool RingNode::begin_receiving(std::size_t chunk) {
  if (chunk >= size() || states_[chunk] >= State::begun) return false;
  begin(chunk);
  asked_[chunk] = false;
  return true;
}

void RingNode::not_received(std::size_t chunk) {
  --begun_;
  states_[chunk] = State::missing;
  if (alone_) make_own(chunk);
}

void RingNode::arrived_damaged(std::size_t chunk) {
  --begun_;
  make_own(chunk);
}

void RingNode::predecessor_lacks(std::size_t chunk) {
  if (chunk >= size() || states_[chunk] != State::missing) return;
  asked_[chunk] = false;
  make_own(chunk);
}

std::vector<std::size_t> RingNode::hand_over() {
  std::vector<std::size_t> chunks;
  const std::size_t count = std::min(own_.size() / 2, kMaxHandedOver);
  while (!alone_ && chunks.size() < count && !may_hand_over_.empty()) {
    const std::size_t chunk = *may_hand_over_.rbegin();
    may_hand_over_.erase(chunk);
    own_.erase(chunk);
    states_[chunk] = State::missing;
    asked_[chunk] = true;
    handed_over_.push_back(chunk);
    chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<std::size_t> RingNode::handed_over() {
  std::erase_if(handed_over_, [this](std::size_t chunk) { return states_[chunk] != State::missing; });
  return handed_over_;
}

void RingNode::predecessor_lost() {
  alone_ = true;
  for (std::size_t chunk = 0; chunk < size(); ++chunk) {
    asked_[chunk] = false;
    if (states_[chunk] == State::missing) make_own(chunk);
  }
  cancelled_.clear();
}

void RingNode::checked(std::size_t chunk) {
  if (available(chunk)) return;
  states_[chunk] = State::checked;
  arrivals_.push_back(chunk);
  if (wanted_[chunk]) ++to_send_;
}

void RingNode::stored(std::size_t chunk) {
  if (states_[chunk] == State::here) return;
  states_[chunk] = State::here;
  --lacking_;
  --begun_;
}

void RingNode::successor_wants(std::span<const std::byte> bits) {
  next_ = to_send_ = 0;
  for (std::size_t chunk = 0; chunk < size(); ++chunk) {
    wanted_[chunk] = bit(bits, chunk);
    if (wanted_[chunk] && available(chunk)) ++to_send_;
  }
}

void RingNode::successor_reads(std::size_t chunk) {
  if (chunk >= size() || !wanted_[chunk]) return;
  if (available(chunk)) --to_send_;
  wanted_[chunk] = false;
}

void RingNode::successor_hands_over(std::size_t chunk) {
  if (chunk >= size()) return;
  if (!wanted_[chunk] && available(chunk)) {
    ++to_send_;
    next_ = 0;
  }
  wanted_[chunk] = true;
  if (states_[chunk] == State::missing) make_own(chunk);
}

std::optional<std::size_t> RingNode::next_send() {
  while (next_ < arrivals_.size()) {
    const std::size_t chunk = arrivals_[next_++];
    if (!wanted_[chunk]) continue;
    wanted_[chunk] = false;
    --to_send_;
    return chunk;
  }
  return {};
}

}  // namespace lockstep::transfer
