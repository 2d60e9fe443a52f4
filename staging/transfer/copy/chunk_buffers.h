// The memory that a copy may use: buffers for chunks, within one budget. A caller waits until the budget has room, so
// the number of threads and peers does not change a copy's memory.
//
// Threads: safe from any; a Buffer belongs to one thread at a time, and may outlive the object.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lockstep::transfer {

class ChunkBuffers {
  struct Memory;

 public:
  /// Aligned for O_DIRECT.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    /// The bytes asked for.
    std::span<std::byte> bytes() const { return {memory_, bytes_}; }

   private:
    friend class ChunkBuffers;
    std::shared_ptr<Memory> owner_;
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t capacity_ = 0;
  };

  static constexpr std::size_t kAlignment = 4096;

  /// `budget` is in bytes, at least one `chunk`. No buffer may be larger than `chunk` bytes.
  ChunkBuffers(std::size_t budget, std::size_t chunk);

  /// Waits until the budget has room.
  Buffer take(std::size_t bytes);

 private:
  std::shared_ptr<Memory> memory_;
};

/// A chunk in memory, which several threads use: to store, hash and send it. The last one frees it.
using LentChunk = std::shared_ptr<const ChunkBuffers::Buffer>;

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

}  // namespace lockstep::transfer
