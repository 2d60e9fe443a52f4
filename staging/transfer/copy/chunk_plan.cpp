#include "staging/transfer/copy/chunk_plan.h"

#include <algorithm>
#include <limits>

#include "common/error.h"

namespace lockstep::transfer {

ChunkPlan::ChunkPlan(std::vector<std::uint64_t> sizes, std::uint32_t chunk_bytes)
    : sizes_(std::move(sizes)), chunk_bytes_(chunk_bytes), first_{0} {
  constexpr std::uint32_t kMax = std::numeric_limits<std::uint32_t>::max();
  if (chunk_bytes == 0 || chunk_bytes > (std::uint32_t{64} << 20U) || sizes_.size() >= kMax) {
    fail("cannot cut {} files into chunks of {} bytes", sizes_.size(), chunk_bytes);
  }
  std::uint32_t filled = 0;  // of the chunk that is being put together
  const auto close = [&] {
    if (extents_.size() == first_.back()) return;
    first_.push_back(extents_.size());
    filled = 0;
    if (first_.size() >= kMax) fail("more than {} chunks of {} bytes", kMax, chunk_bytes);
  };
  first_chunk_.resize(sizes_.size());
  last_chunk_.resize(sizes_.size());
  for (std::size_t f = 0; f < sizes_.size(); ++f) {
    total_ += sizes_[f];
    // A file that does not fit into the rest of the open chunk begins a new one, so that large files are cut
    // at multiples of the chunk size.
    if (filled + sizes_[f] > chunk_bytes_ || extents_.size() - first_.back() == kMaxExtents) close();
    first_chunk_[f] = static_cast<std::uint32_t>(size());
    std::uint64_t offset = 0;
    do {
      const auto bytes =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(sizes_[f] - offset, chunk_bytes_ - filled));
      extents_.push_back({offset, bytes, static_cast<std::uint32_t>(f)});
      last_chunk_[f] = static_cast<std::uint32_t>(size());
      offset += bytes;
      filled += bytes;
      if (filled == chunk_bytes_) close();
    } while (offset < sizes_[f]);
  }
  close();
}

std::uint32_t ChunkPlan::bytes(std::size_t chunk) const {
  std::uint32_t sum = 0;
  for (const Extent& extent : extents(chunk)) sum += extent.bytes;
  return sum;
}

}  // namespace lockstep::transfer
