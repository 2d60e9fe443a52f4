// Provides the chunks that other nodes ask for: from a copy in progress, or from a complete object.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "staging/transfer/copy/copy.h"
#include "staging/transfer/exchange/chunk_schedule.h"

namespace lockstep::transfer {

class ChunkProvider {
 public:
  /// `elsewhere`: the node that asks must get the chunk from another node or from the source.
  enum class State { here, coming, elsewhere };

  virtual ~ChunkProvider() = default;

  virtual State state(std::size_t chunk, std::uint32_t asker) = 0;
  virtual std::uint32_t bytes(std::size_t chunk) const = 0;
  /// Reads a chunk that is here. Returns false if it cannot be read.
  virtual bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) = 0;
  /// Called when `node` has read all that it must read from the source.
  virtual void help_from(std::uint32_t /*node*/) {}
};

/// A copy in progress.
class CopyProvider : public ChunkProvider {
 public:
  /// The references must outlive this object.
  CopyProvider(Copy& copy, ChunkSchedule& schedule) : copy_(copy), schedule_(schedule) {}
  State state(std::size_t chunk, std::uint32_t asker) override;
  std::uint32_t bytes(std::size_t chunk) const override { return copy_.plan().bytes(chunk); }
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override;
  void help_from(std::uint32_t node) override { schedule_.help_from(node); }

 private:
  Copy& copy_;
  ChunkSchedule& schedule_;
};

/// An object of the cache.
class ObjectProvider : public ChunkProvider {
 public:
  ObjectProvider(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
                 std::uint32_t chunk_bytes);
  State state(std::size_t chunk, std::uint32_t asker) override;
  std::uint32_t bytes(std::size_t chunk) const override { return plan_.bytes(chunk); }
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) override;

 private:
  ChunkPlan plan_;
  LocalFiles files_;
};

}  // namespace lockstep::transfer
