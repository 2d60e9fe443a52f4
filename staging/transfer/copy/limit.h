// A limit of bytes per second for all threads of a copy, and for all copies into one store. The state is a single
// number: the time at which the next byte may be read. It lies in a file that all processes map, so sharing it needs
// neither a lock nor a daemon.
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
  void* mapping_ = nullptr;
};

}  // namespace lockstep::transfer
