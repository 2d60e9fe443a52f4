// How the bytes of an object are cut into chunks, the unit that is read, sent, verified and recorded. Files follow each other
// in the given order. A large file is cut at multiples of the chunk size; ends of files and small files share chunks. A chunk
// holds a limited number of files, so that many chunks are copied at once.
//
// Then, which node reads which chunk. Whole files are dealt in turn, so that they are complete on all nodes in about the order
// of the lists, and few nodes open each file. A file that is larger than a fair share, or that is left over after the last
// whole turn, is divided between a few nodes, whose chunks alternate. The same sizes give the same chunks and shares on every
// node, so no message is needed.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace lockstep::transfer {

/// Consecutive bytes of one file.
struct Extent {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t file = 0;  ///< its place in the list
};

class ChunkPlan {
 public:
  static constexpr std::uint32_t kChunkBytes = std::uint32_t{4} << 20U;
  static constexpr std::size_t kMaxExtents = 64;

  /// Throws Error if there are too many files, or if chunks are empty or too large.
  ChunkPlan(std::vector<std::uint64_t> sizes, std::uint32_t chunk_bytes);

  /// Number of chunks.
  std::size_t size() const { return first_.size() - 1; }
  std::size_t files() const { return sizes_.size(); }
  std::uint64_t file_bytes(std::size_t file) const { return sizes_[file]; }
  std::uint32_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t total_bytes() const { return total_; }

  /// In the order of the chunk's bytes. An empty file has one empty extent.
  std::span<const Extent> extents(std::size_t chunk) const {
    return std::span(extents_).subspan(first_[chunk], first_[chunk + 1] - first_[chunk]);
  }
  std::uint32_t bytes(std::size_t chunk) const;

  /// The chunks with bytes of a file: from first_chunk(f) to last_chunk(f), both included.
  std::size_t first_chunk(std::size_t file) const { return first_chunk_[file]; }
  std::size_t last_chunk(std::size_t file) const { return last_chunk_[file]; }

 private:
  std::vector<std::uint64_t> sizes_;
  std::uint32_t chunk_bytes_;
  std::uint64_t total_ = 0;
  std::vector<Extent> extents_;
  std::vector<std::size_t> first_;  // of each chunk in extents_
  std::vector<std::uint32_t> first_chunk_, last_chunk_;
};

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
