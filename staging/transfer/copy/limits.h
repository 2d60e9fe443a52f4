// What the copies of a process, or of all processes into one store, may use together: memory for chunks, and bytes a second.
//
// Threads: safe from any. A chunk may outlive its ChunkBuffers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "common/files.h"

namespace lockstep::transfer {

/// A chunk in memory, aligned for O_DIRECT, which several threads use: to store, hash and send it. The last one frees it.
struct LentChunk {
  std::shared_ptr<std::byte> memory{};
  std::size_t size = 0;

  std::span<std::byte> bytes() const { return {memory.get(), size}; }
  explicit operator bool() const { return memory != nullptr; }
};

/// Buffers for chunks, within one budget. A caller waits until the budget has room, so the number of threads and peers does not
/// change a copy's memory.
class ChunkBuffers {
 public:
  static constexpr std::size_t kAlignment = 4096;

  /// `budget` is in bytes, at least one `chunk`. No buffer may be larger than `chunk` bytes.
  ChunkBuffers(std::size_t budget, std::size_t chunk);

  /// Waits until the budget has room.
  LentChunk take(std::size_t bytes);

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

/// The memory of the copies that one process makes at a time. Chunks that are read back to be hashed have a separate part:
/// the threads that hash also store, so they must not wait for chunks that wait to be stored.
struct CopyMemory {
  CopyMemory(std::size_t buffers, std::uint32_t chunk_bytes)
      : chunks(buffers * chunk_bytes, chunk_bytes),
        read_back(std::size_t{2} * chunk_bytes, chunk_bytes),
        early(static_cast<int>(buffers * 3 / 8)) {}
  ChunkBuffers chunks;
  ChunkBuffers read_back;
  /// How many more chunks may stay in memory until the chunks before them in their files are hashed. If all buffers held
  /// such chunks, none could arrive.
  std::atomic<int> early;
};

/// A limit of bytes per second for all threads of a copy, and for all copies into one store. The state is a single number: the
/// time at which the next byte may be read. It lies in a file that all processes map, so sharing it needs neither a lock nor a
/// daemon.
class Limit {
 public:
  /// `bytes_per_second` 0: no limit. `shared` is the file that is shared with other processes, made if
  /// missing. If it is "" or cannot be used, the limit is for this object alone.
  Limit(std::uint64_t bytes_per_second, const std::filesystem::path& shared);
  ~Limit();
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  /// Returns when these bytes may be read.
  void take(std::uint64_t bytes);

 private:
  std::uint64_t rate_;
  std::atomic<std::uint64_t> own_ = 0;
  std::atomic<std::uint64_t>* next_ = &own_;  // CLOCK_MONOTONIC, nanoseconds
};

}  // namespace lockstep::transfer
