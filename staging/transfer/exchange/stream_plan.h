// The chunks of several sources as one sequence: those of the first source, then those of the second, and so on. All of
// them travel in one stream.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <vector>

#include "staging/transfer/copy/chunk_plan.h"

namespace lockstep::transfer {

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

}  // namespace lockstep::transfer
