// Provides the chunks that successors ask for: from a copy in progress, or from a complete object.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "staging/transfer/copy/copy.h"
#include "staging/transfer/exchange/chain_schedule.h"

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

/// A copy in progress.
class CopyProvider : public ChunkProvider {
 public:
  /// The references must outlive this object.
  CopyProvider(Copy& copy, ChainSchedule& schedule) : copy_(copy), schedule_(schedule) {}
  std::size_t chunks() const override { return copy_.plan().size(); }
  std::uint32_t bytes(std::size_t chunk) const override { return copy_.plan().bytes(chunk); }
  std::optional<std::size_t> wait_for(std::size_t n, int milliseconds) override {
    return schedule_.wait_for(n, milliseconds);
  }
  bool is_here(std::size_t chunk) const override { return schedule_.is_here(chunk); }
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override;
  std::uint32_t origin(std::size_t chunk) const override { return schedule_.origin(chunk); }
  bool idle() const override { return schedule_.idle(); }
  void take_over(std::span<const std::size_t> chunks) override { schedule_.take_over(chunks); }

 private:
  Copy& copy_;
  ChainSchedule& schedule_;
};

/// An object of the cache.
class ObjectProvider : public ChunkProvider {
 public:
  /// `self` is this node's number.
  ObjectProvider(std::uint32_t self, const std::filesystem::path& folder,
                 const std::vector<ManifestFile>& files, std::uint32_t chunk_bytes);
  std::size_t chunks() const override { return plan_.size(); }
  std::uint32_t bytes(std::size_t chunk) const override { return plan_.bytes(chunk); }
  std::optional<std::size_t> wait_for(std::size_t n, int milliseconds) override;
  bool is_here(std::size_t chunk) const override { return chunk < plan_.size(); }
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override;
  std::uint32_t origin(std::size_t /*chunk*/) const override { return self_; }

 private:
  std::uint32_t self_;
  ChunkPlan plan_;
  LocalFiles files_;
};

}  // namespace lockstep::transfer
