// Memory that the ranks of a node share. A segment is an anonymous file (memfd) that its owner maps and that
// other ranks open through the owner's /proc/PID/fd. It has no name, so nothing remains however a rank ends,
// and the size of /dev/shm, 64 MB in many containers, does not limit it. It counts towards the job's memory
// limit.
//
// Threads: safe from any, except where a class says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep::comm::shm {

/// How another rank of the node opens a segment. Plain data that ranks exchange.
struct SegmentHandle {
  std::int32_t process = 0;
  std::int32_t descriptor = -1;
  std::uint64_t inode = 0;  ///< to check that the descriptor is still this segment
  std::uint64_t bytes = 0;

  bool operator==(const SegmentHandle&) const = default;
};

/// A position in a segment.
struct Location {
  SegmentHandle segment;
  std::uint64_t offset = 0;  ///< bytes
};

/// Zeroed memory that other ranks of the node can map. It is aligned to 2 MiB if it is at least that large,
/// else to a page. Its pages are allocated now, near the calling thread's CPU. Throws Error, with the number
/// of bytes, if there is not enough memory.
std::shared_ptr<void> allocate(std::size_t bytes);

/// The position of memory from allocate(); nullopt for other memory, or if the segment ends before `bytes`.
std::optional<Location> find(const void* memory, std::size_t bytes);

/// How many segments this process has freed. When it changes, other ranks should unmap this one's segments.
std::uint64_t free_count();

/// Maps a segment of another process or of this one. Throws Error if it cannot be opened.
std::shared_ptr<void> map(const SegmentHandle& segment);

/// Shared memory for copies of data that lies elsewhere. Up to 64 MiB are kept for later operations. For one thread at a
/// time.
class StagingPool {
 public:
  /// At least `bytes` of shared memory.
  std::shared_ptr<void> take(std::size_t bytes);
  void give_back(std::shared_ptr<void> memory);

 private:
  struct FreeBlock {
    std::shared_ptr<void> memory;
    std::size_t bytes;
  };
  std::vector<FreeBlock> free_;
};

}  // namespace lockstep::comm::shm
