// The memory that copying may take: buffers for chunks out of one budget. Who wants one waits until the
// budget allows it, so neither many threads nor many peers make a copy larger.
//
// Threads: safe from any; a Buffer belongs to one thread at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace lockstep::transfer {

class ChunkBuffers {
 public:
  /// Aligned for O_DIRECT, and as long as was asked for, rounded up to it.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    explicit operator bool() const { return memory_ != nullptr; }
    /// The bytes asked for.
    std::span<std::byte> bytes() const { return {memory_, bytes_}; }
    /// With the padding behind them, to a multiple of kAlignment.
    std::span<std::byte> padded() const;

   private:
    friend class ChunkBuffers;
    ChunkBuffers* owner_ = nullptr;
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t capacity_ = 0;
  };

  static constexpr std::size_t kAlignment = 4096;

  /// `budget` in bytes, at least one `chunk`; buffers of up to `chunk` bytes are asked for.
  ChunkBuffers(std::size_t budget, std::size_t chunk);
  ~ChunkBuffers();

  /// Waits until there is room.
  Buffer take(std::size_t bytes);
  /// An empty one where there is none now.
  Buffer try_take(std::size_t bytes);

 private:
  Buffer take(std::size_t bytes, bool wait);
  void give_back(Buffer& buffer);

  std::size_t budget_;
  std::size_t chunk_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::size_t used_ = 0;
  std::vector<std::byte*> spare_;  // of whole chunks: mapping them anew would cost as much as reading them
};

}  // namespace lockstep::transfer
