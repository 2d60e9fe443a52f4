#include "runtime/train/partition.h"

#include <algorithm>
#include <utility>

namespace lockstep::train {

Partition::Partition(std::vector<BucketLayout> buckets, int ranks)
    : buckets_(std::move(buckets)), ranks_(ranks) {
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

std::vector<Span> Partition::spans_of(int rank) const {
  std::vector<Span> spans;
  if (rank >= ranks_) return spans;
  for (const BucketLayout& bucket : buckets_) {
    const EqualParts parts(bucket.count, ranks_);
    const std::int64_t begin = parts.begin_of(rank);
    const std::int64_t end = parts.end_of(rank);
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
  const auto [bucket, position] = places_[span.parameter];
  if (bucket == SIZE_MAX) return;
  const EqualParts parts(buckets_[bucket].count, ranks_);
  for (std::int64_t begin = span.begin; begin < span.end;) {
    const int rank = parts.owner_of(position + begin);
    const std::int64_t end = std::min(span.end, parts.end_of(rank) - position);
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

std::int64_t PeerSpans::elements() const {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += span.size();
  return sum;
}

Moves::Moves(const Partition& from, const Partition& to, int rank)
    : sends(by_owner(from.spans_of(rank), to)), receives(by_owner(to.spans_of(rank), from)) {
}

}  // namespace lockstep::train
