// Provides the chunks that successors ask for.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "staging/transfer/copy/copy.h"
#include "staging/transfer/exchange/chain_schedule.h"
#include "staging/transfer/exchange/stream_plan.h"

namespace lockstep::transfer {

class ChunkProvider {
 public:
  virtual ~ChunkProvider() = default;

  virtual std::size_t chunks() const = 0;
  virtual std::uint32_t bytes(std::size_t chunk) const = 0;
  /// As ChainSchedule::wait_for().
  virtual std::optional<std::size_t> wait_for(std::size_t n, int milliseconds) = 0;
  virtual bool is_here(std::size_t chunk) const = 0;
  /// Reads a chunk that is here. Returns false if it cannot be read.
  virtual bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) = 0;
  /// The node that read the chunk from the source.
  virtual std::uint32_t origin(std::size_t chunk) const = 0;
  /// Whether this node can read chunks of a successor's share, and takes them over.
  virtual bool idle() const { return false; }
  virtual void take_over(std::span<const std::size_t> /*chunks*/) {}
};

/// The chunks of a chain's sources on this node: of copies in progress, and of complete objects.
class StreamChunks : public ChunkProvider {
 public:
  /// Reads a chunk of one source. Returns false if it cannot be read.
  using Read = std::function<bool(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest)>;

  /// `read` has one for each source of the plan. The references must outlive this object.
  StreamChunks(const StreamPlan& plan, ChainSchedule& schedule, std::vector<Read> read)
      : plan_(plan), schedule_(schedule), read_(std::move(read)) {}
  std::size_t chunks() const override { return plan_.size(); }
  std::uint32_t bytes(std::size_t chunk) const override { return plan_.bytes(chunk); }
  std::optional<std::size_t> wait_for(std::size_t n, int milliseconds) override {
    return schedule_.wait_for(n, milliseconds);
  }
  bool is_here(std::size_t chunk) const override { return schedule_.is_here(chunk); }
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override {
    const StreamPlan::Place place = plan_.place(chunk);
    return read_[place.source](place.chunk, into, digest);
  }
  std::uint32_t origin(std::size_t chunk) const override { return schedule_.origin(chunk); }
  bool idle() const override { return schedule_.idle(); }
  void take_over(std::span<const std::size_t> chunks) override { schedule_.take_over(chunks); }

 private:
  const StreamPlan& plan_;
  ChainSchedule& schedule_;
  std::vector<Read> read_;
};

/// The chunks of an object of the cache. A file whose bytes are not those of its digest any longer is not given away. From
/// the first chunk that is asked for, a thread hashes the large files ahead of the others, so that nobody waits for that.
class ObjectChunks {
 public:
  ObjectChunks(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
               std::uint32_t chunk_bytes);
  const ChunkPlan& plan() const { return plan_; }
  /// As StreamChunks::Read.
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest);

 private:
  bool is_good(std::uint32_t file, const std::stop_token& stop);
  pack::Digest digest_of(std::uint32_t file, const std::stop_token& stop);
  void check_ahead(const std::stop_token& stop);

  ChunkPlan plan_;
  LocalFiles files_;
  std::vector<std::optional<pack::Digest>> digests_;
  std::vector<std::once_flag> checked_;  // large files
  std::vector<char> good_;
  std::once_flag asked_;
  std::jthread ahead_;
};

}  // namespace lockstep::transfer
