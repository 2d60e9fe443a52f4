#include "runtime/train/partition.h"

#include <algorithm>
#include <utility>

namespace lockstep::train {

Partition::Partition(std::vector<BucketLayout> buckets, int ranks)
    : buckets_(std::move(buckets)), parts_(ranks), ranks_(ranks) {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const BucketLayout::Member& member : buckets_[bucket].members) {
      if (member.parameter >= places_.size()) places_.resize(member.parameter + 1);
      places_[member.parameter] = {.bucket = bucket, .position = member.position};
    }
  }
}

Partition Partition::of_parameters(const std::vector<std::int64_t>& elements, int ranks) {
  std::vector<BucketLayout> buckets;
  for (std::size_t i = 0; i < elements.size(); ++i)
    buckets.push_back({.count = elements[i], .members = {{.parameter = i, .elements = elements[i]}}});
  return {std::move(buckets), ranks};
}

Partition Partition::on(int ranks) const {
  Partition other = *this;
  other.ranks_ = ranks;
  return other;
}

std::int64_t Partition::begin_of(const BucketLayout& bucket, int rank) const {
  if (rank == ranks_) return bucket.count;
  const EqualParts parts(bucket.count, parts_);
  const std::int64_t at = std::int64_t{rank} * parts_;  // in parts, times ranks_
  const int part = static_cast<int>(at / ranks_);
  const std::int64_t begin = parts.begin_of(part);
  return begin + (parts.end_of(part) - begin) * (at % ranks_) / ranks_;
}

int Partition::owner_of(const BucketLayout& bucket, std::int64_t element) const {
  if (is_plain()) return EqualParts(bucket.count, ranks_).owner_of(element);
  int first = 0;  // the last rank that begins at the element or before it is in [first, end)
  for (int end = ranks_; end - first > 1;) {
    const int middle = first + (end - first) / 2;
    if (begin_of(bucket, middle) <= element) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return first;
}

std::vector<Span> Partition::spans_of(int rank) const {
  std::vector<Span> spans;
  if (rank >= ranks_) return spans;
  for (const BucketLayout& bucket : buckets_) {
    const std::int64_t begin = begin_of(bucket, rank);
    const std::int64_t end = begin_of(bucket, rank + 1);
    auto member = std::partition_point(bucket.members.begin(), bucket.members.end(),
                                       [&](const auto& one) { return one.position + one.elements <= begin; });
    for (; member != bucket.members.end() && member->position < end; ++member) {
      const Span span{member->parameter, std::max<std::int64_t>(begin - member->position, 0),
                      std::min(end - member->position, member->elements)};
      if (span.size() > 0) spans.push_back(span);
    }
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.parameter < b.parameter; });
  return spans;
}

void Partition::append_owners(const Span& span, std::vector<Owned>& owners) const {
  if (span.parameter >= places_.size()) return;
  const auto [number, position] = places_[span.parameter];
  if (number == SIZE_MAX) return;
  const BucketLayout& bucket = buckets_[number];
  for (std::int64_t begin = span.begin; begin < span.end;) {
    const int rank = owner_of(bucket, position + begin);
    const std::int64_t end = std::min(span.end, begin_of(bucket, rank + 1) - position);
    owners.push_back({.rank = rank, .span = {span.parameter, begin, end}});
    begin = end;
  }
}

std::vector<PeerSpans> by_owner(const std::vector<Span>& spans, const Partition& owners) {
  std::vector<Partition::Owned> parts;
  for (const Span& span : spans) owners.append_owners(span, parts);
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  std::vector<PeerSpans> peers;
  for (const Partition::Owned& part : parts) {
    if (peers.empty() || peers.back().peer != part.rank) peers.push_back({.peer = part.rank, .spans = {}});
    peers.back().spans.push_back(part.span);
  }
  return peers;
}

Moves::Moves(const Partition& from, const Partition& to, int rank)
    : sends(by_owner(from.spans_of(rank), to)), receives(by_owner(to.spans_of(rank), from)) {
}

}  // namespace lockstep::train
