#include "staging/transfer/exchange/list_relay.h"

#include <algorithm>

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

}  // namespace lockstep::transfer
