// Deals the chunks that nobody has to the nodes that read them. Every node computes the same shares from the same lists,
// so no message is needed. Whole files are dealt in turn, so that they are complete on all nodes in about the order of the
// lists, and few nodes open each file. A file that is larger than a fair share, or that is left over after the last whole
// turn, is divided between a few nodes, whose chunks alternate.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "staging/transfer/copy/chunk_plan.h"

namespace lockstep::transfer {

/// The chunks of several sources as one sequence: those of the first source, then those of the second, and so on. All of them
/// travel in one stream.
class StreamPlan {
 public:
  /// A chunk of one source.
  struct Place {
    std::size_t source = 0;
    std::size_t chunk = 0;
  };

  /// The plans must outlive this object.
  explicit StreamPlan(std::vector<const ChunkPlan*> plans);

  /// The number of chunks.
  std::size_t size() const { return first_.back(); }
  std::size_t sources() const { return plans_.size(); }
  const ChunkPlan& plan(std::size_t source) const { return *plans_[source]; }
  /// The chunks of a source: from first(s) to first(s + 1), without the last.
  std::size_t first(std::size_t source) const { return first_[source]; }
  Place place(std::size_t chunk) const;
  std::uint32_t bytes(std::size_t chunk) const;

 private:
  std::vector<const ChunkPlan*> plans_;
  std::vector<std::size_t> first_;
};

inline constexpr std::uint32_t kNoReader = std::numeric_limits<std::uint32_t>::max();

/// The reader of each chunk, from 0 to `readers` - 1; kNoReader for the chunks of a source that is `held`: a node has it.
/// `readers` is at least 1, `held` as long as the plan has sources.
std::vector<std::uint32_t> deal_chunks(const StreamPlan& plan, std::uint32_t readers,
                                       const std::vector<bool>& held);

}  // namespace lockstep::transfer
