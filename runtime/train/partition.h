// The division of the optimizer's state among the ranks. Parameters lie one after the other in buckets, and each bucket is
// cut into equal parts, one for each rank, or for each of the ranks that saved. So every rank computes from the buckets and
// the number of ranks what the others have, and ranks exchange only state: nothing describes it.
//
// A rank computes its own part in time and memory of its own pieces, whatever the number of ranks.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::train {

/// The elements [begin, end) of a parameter, in the order of its memory.
struct Span {
  std::size_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

/// Cuts elements into one part for each rank. The parts of a ddp::FlatBucket are equal, as reduce-scatter needs them;
/// of other counts the last parts are smaller or empty.
struct EqualParts {
  EqualParts(std::int64_t elements, int ranks) : each((elements + ranks - 1) / ranks), count(elements) {}

  std::int64_t begin_of(int rank) const { return std::min(each * rank, count); }
  std::int64_t end_of(int rank) const { return begin_of(rank + 1); }
  int owner_of(std::int64_t element) const { return static_cast<int>(element / each); }

  std::int64_t each;
  std::int64_t count;
};

/// The elements of a bucket: those of its parameters, with space between them.
struct BucketLayout {
  struct Member {
    std::size_t parameter = 0;
    std::int64_t position = 0;  ///< of its first element
    std::int64_t elements = 0;
  };
  std::int64_t count = 0;
  std::vector<Member> members;  ///< by position
};

class Partition {
 public:
  /// Each parameter is in at most one bucket.
  Partition(std::vector<BucketLayout> buckets, int ranks);
  /// Each parameter is a bucket of its own. `elements`: by parameter.
  static Partition of_parameters(const std::vector<std::int64_t>& elements, int ranks);

  int ranks() const { return ranks_; }
  const std::vector<BucketLayout>& buckets() const { return buckets_; }
  /// The same parts, kept by another number of ranks: several parts by each, or each part by several. So a rank needs few
  /// of the files that ranks() ranks saved.
  Partition on(int ranks) const;
  /// Whether each rank keeps one part of each bucket.
  bool is_plain() const { return parts_ == ranks_; }

  /// The elements that a rank keeps, by parameter; none for a rank that the partition does not have.
  std::vector<Span> spans_of(int rank) const;

  /// A part of a span, and the rank that keeps it.
  struct Owned {
    int rank = 0;
    Span span;
  };
  /// Appends the parts of a span, in the order of its elements; none for a parameter that is in no bucket.
  void append_owners(const Span& span, std::vector<Owned>& owners) const;

 private:
  /// The first element of a bucket that a rank keeps.
  std::int64_t begin_of(const BucketLayout& bucket, int rank) const;
  int owner_of(const BucketLayout& bucket, std::int64_t element) const;

  struct Place {
    std::size_t bucket = SIZE_MAX;  // in none
    std::int64_t position = 0;
  };

  std::vector<BucketLayout> buckets_;
  std::vector<Place> places_;  // by parameter
  int parts_;                  // of a bucket
  int ranks_;
};

/// The elements that a rank sends to another one, or receives from it.
struct PeerSpans {
  int peer = 0;
  std::vector<Span> spans;  ///< by parameter
};

/// The spans, cut where their owners change, by owner.
std::vector<PeerSpans> by_owner(const std::vector<Span>& spans, const Partition& owners);

/// A rank's part in the move of state from one partition to another. The spans of a message are the same, in the same
/// order, on both ranks. Elements that stay on the rank are a message to itself.
struct Moves {
  Moves(const Partition& from, const Partition& to, int rank);

  std::vector<PeerSpans> sends;     ///< by peer
  std::vector<PeerSpans> receives;  ///< by peer
};

}  // namespace lockstep::train
