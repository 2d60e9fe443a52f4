// Memory that ranks of one node share. A segment is an anonymous file (memfd) that its owner maps and that
// other ranks open through the owner's /proc/PID/fd: it has no name, so nothing is left behind however a rank
// ends, and it is not limited by the size of /dev/shm, which containers make 64 MB. What is not enough is the
// job's memory limit, as for any other memory.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace lockstep::comm::shm {

/// How a rank of the same node finds a segment; plain data that travels through shared memory.
struct SegmentName {
  std::int32_t process = 0;
  std::int32_t descriptor = -1;
  std::uint64_t inode = 0;  ///< tells whether that process is the one that was meant
  std::uint64_t bytes = 0;

  bool operator==(const SegmentName&) const = default;
};

/// Where registered memory lies.
struct Location {
  SegmentName segment;
  std::uint64_t offset = 0;  ///< bytes from the segment's begin
};

/// Zeroed memory that ranks of the same node can map, aligned to 2 MiB from that size on and to a page below,
/// its pages taken now and close to the calling thread's CPU. Lives as long as the pointer. Throws Error with
/// the bytes that were asked for where there is not enough.
std::shared_ptr<void> allocate(std::size_t bytes);

/// Where memory from allocate() lies; nothing for other memory, or where it ends before `bytes`.
std::optional<Location> find(const void* memory, std::size_t bytes);

/// How many segments this process has freed: when it changes, others should forget what they have mapped.
std::uint64_t frees();

/// Maps another process's segment (or one of this process). Throws Error where it cannot be opened.
std::shared_ptr<void> map(const SegmentName& name);

}  // namespace lockstep::comm::shm
