#include "staging/transfer/copy/chunk_plan.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

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

namespace {

/// Chunks of one file, or one chunk of small files.
struct Run {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

std::vector<Run> runs_of(const StreamPlan& plan, const std::vector<bool>& held) {
  std::vector<Run> runs;
  for (std::size_t source = 0; source < plan.sources(); ++source) {
    if (held[source]) continue;
    const ChunkPlan& files = plan.plan(source);
    for (std::size_t chunk = 0; chunk < files.size();) {
      const std::size_t end = files.last_chunk(files.extents(chunk)[0].file) + 1;
      runs.push_back({plan.first(source) + chunk, plan.first(source) + end});
      chunk = end;
    }
  }
  return runs;
}

/// A reader and the number of chunks of one file that it reads.
using Part = std::pair<std::size_t, std::size_t>;

// Lets the chunks of a file alternate between its readers, each in proportion to its part.
void alternate(const Run& run, const std::vector<Part>& parts, std::vector<std::uint32_t>& dealt) {
  constexpr std::uint64_t kScale = std::uint64_t{1} << 24U;
  std::vector<std::pair<std::uint64_t, std::size_t>> turns;
  for (const auto& [reader, count] : parts) {
    for (std::size_t i = 0; i < count; ++i) turns.emplace_back((2 * i + 1) * kScale / count, reader);
  }
  std::sort(turns.begin(), turns.end());
  for (std::size_t i = 0; i < turns.size(); ++i)
    dealt[run.begin + i] = static_cast<std::uint32_t>(turns[i].second);
}

}  // namespace

StreamPlan::StreamPlan(std::vector<const ChunkPlan*> plans) : plans_(std::move(plans)), first_{0} {
  for (const ChunkPlan* const plan : plans_) first_.push_back(first_.back() + plan->size());
}

StreamPlan::Place StreamPlan::place(std::size_t chunk) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), chunk);
  const auto source = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {source, chunk - first_[source]};
}

std::uint32_t StreamPlan::bytes(std::size_t chunk) const {
  const Place at = place(chunk);
  return plans_[at.source]->bytes(at.chunk);
}

std::vector<std::uint32_t> deal_chunks(const StreamPlan& plan, std::uint32_t readers,
                                       const std::vector<bool>& held) {
  std::vector<std::uint32_t> dealt(plan.size(), kNoReader);
  const std::vector<Run> runs = runs_of(plan, held);
  std::size_t chunks = 0;
  for (const Run& run : runs) chunks += run.size();
  std::vector<std::size_t> loads(readers);             // chunks of each reader
  using Turn = std::pair<std::size_t, std::uint32_t>;  // load, reader
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  for (std::uint32_t reader = 0; reader < readers; ++reader) turns.emplace(0, reader);
  std::vector<Run> left;
  for (const Run& run : runs) {
    const auto [load, reader] = turns.top();
    // A little more than a fair share is allowed, because files differ.
    constexpr std::size_t kTolerance = 16;
    if ((load + run.size()) * readers * kTolerance > chunks * (kTolerance + 1)) {
      left.push_back(run);
      continue;
    }
    turns.pop();
    turns.emplace(loads[reader] += run.size(), reader);
    std::fill(dealt.begin() + static_cast<std::ptrdiff_t>(run.begin),
              dealt.begin() + static_cast<std::ptrdiff_t>(run.end), reader);
  }
  std::size_t reader = 0;
  for (const Run& run : left) {
    std::vector<Part> parts;
    for (std::size_t rest = run.size(); rest > 0;) {
      const bool last = reader + 1 == readers;
      const std::size_t fair = chunks * (reader + 1) / readers - chunks * reader / readers;
      const std::size_t free = fair > loads[reader] ? fair - loads[reader] : 0;
      const std::size_t taken = last ? rest : std::min(free, rest);
      if (taken > 0) parts.emplace_back(reader, taken);
      loads[reader] += taken;
      rest -= taken;
      if (!last && loads[reader] >= fair) ++reader;
    }
    alternate(run, parts, dealt);
  }
  return dealt;
}

}  // namespace lockstep::transfer
