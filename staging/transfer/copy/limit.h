// A limit of bytes per second over all threads of a copy, and over all copies into one store: each reader
// takes its place in one queue, which is no more than the moment at which the next byte may be read. That
// number lies in a file that the processes map, so that sharing it takes neither a lock nor a daemon.
//
// Threads: take() from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>

#include "common/files.h"

namespace lockstep::transfer {

class Limit {
 public:
  /// `bytes_per_second` 0: none. `shared` is a file to agree through with other processes, made if missing;
  /// with no name, or where it cannot be had, the limit is this object's alone.
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
  void* mapping_ = nullptr;
};

}  // namespace lockstep::transfer
