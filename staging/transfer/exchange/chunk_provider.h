// Provides the chunks that successors ask for.
//
// Threads: safe from any.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "staging/transfer/copy/local_files.h"
#include "staging/transfer/exchange/chain_schedule.h"
#include "staging/transfer/exchange/recent_chunks.h"
#include "staging/transfer/exchange/stream_plan.h"
#include "staging/transfer/manifest.h"

namespace lockstep::transfer {

/// The chunks of a chain's sources on this node: of copies in progress, and of complete objects. The references must
/// outlive this object.
struct StreamChunks {
  const StreamPlan& plan;
  ChainSchedule& schedule;
  /// Reads a chunk that is here. Returns false if it cannot be read.
  std::function<bool(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest)> read;
  /// Gives a chunk that is still in memory, or null.
  std::function<LentChunk(std::size_t chunk, pack::Digest& digest)> lend;
};

/// The chunks of an object of the cache. A file whose bytes are not those of its digest any longer is not given away. From
/// the first chunk that is asked for, a thread hashes the large files ahead of the others, so that nobody waits for that.
class ObjectChunks {
 public:
  ObjectChunks(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
               std::uint32_t chunk_bytes);
  const ChunkPlan& plan() const { return plan_; }
  /// As StreamChunks::read().
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest);
  /// Whether a file was found that must not be given away.
  bool damaged() const { return damaged_; }

 private:
  bool is_good(std::uint32_t file, const std::stop_token& stop);
  pack::Digest digest_of(std::uint32_t file, const std::stop_token& stop);
  void check_ahead(const std::stop_token& stop);

  ChunkPlan plan_;
  LocalFiles files_;
  std::vector<std::optional<pack::Digest>> digests_;
  std::vector<std::once_flag> checked_;  // large files
  std::vector<char> good_;
  std::atomic<bool> damaged_ = false;
  std::once_flag asked_;
  std::jthread ahead_;
};

}  // namespace lockstep::transfer
