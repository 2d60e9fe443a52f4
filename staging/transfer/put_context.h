// The objects that all steps of putting one source use. Each step takes the result of the previous one:
//
//   source_lookup.h  look_at_source()   the source and the name of its object in the cache
//                    find_or_lock()     a good copy, or the right to make one
//   new_copy.h       begin_copy()       the list of the source's files, in the cache
//                    NewCopy            the copy of the files; publish() returns it as a found one
//
// find_or_copy() does all of it on one node. Nodes that share the work do the same steps with exchanges in
// between (cooperative_put.h).
//
// Threads: PutTally from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "common/clock.h"
#include "staging/cache/store.h"
#include "staging/transfer/copy/chunk_buffers.h"
#include "staging/transfer/copy/limit.h"
#include "staging/transfer/heartbeat.h"
#include "staging/transfer/put_options.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

/// A good copy of a source on this node. It is not removed while this object lives.
struct FoundCopy {
  std::string object;           ///< its name in the cache
  std::filesystem::path files;  ///< the folder of its files
  std::filesystem::path path;   ///< `files`, or the one file that the user named
  std::uint64_t bytes = 0;
  bool shared = false;  ///< it is in the shared store
  bool hit = true;      ///< it was there before
  std::string version;  ///< source_version() (manifest.h)
  cache::ObjectLock lock;
};

/// Counts and notes of one source.
class PutTally {
 public:
  explicit PutTally(std::string source) { result_.source = std::move(source); }

  /// Adds a line for the user, unless the same line was added before.
  void note(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (result_.note.find(text) != std::string::npos) return;
    result_.note += (result_.note.empty() ? "" : "; ") + text;
  }
  /// Adds to a field of the result.
  void count(std::uint64_t PutResult::*field, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    result_.*field += bytes;
  }
  /// The result, except for the fields that FoundCopy has.
  PutResult result() const {
    const std::lock_guard lock(mutex_);
    PutResult result = result_;
    result.seconds = seconds_between(begin_ns_, monotonic_ns());
    return result;
  }

 private:
  const std::uint64_t begin_ns_ = monotonic_ns();
  mutable std::mutex mutex_;
  PutResult result_;
};

/// The memory and the threads that all sources of one put share.
struct PutResources {
  explicit PutResources(const PutOptions& options)
      : memory(options.sizes.buffers, options.sizes.chunk_bytes),
        heartbeat(options.copier_timeout.count() > 0 ? options.copier_timeout / 2 : default_call_timeout(1)) {
  }

  CopyMemory memory;
  Heartbeat heartbeat;
  std::mutex reporting;  ///< held while progress is recorded and reported
};

/// The references must outlive it.
struct PutContext {
  cache::Store& store;
  FileSystem& system;
  Limit& limit;
  PutResources& resources;
  const PutOptions& options;
  Source source;
  PutTally& tally;

  /// The number of threads that check an existing copy.
  int threads() const {
    constexpr int kThreads = 4;
    return options.threads > 0 ? options.threads : kThreads;
  }
  static constexpr int kMaxSourceThreads = 32;  ///< a network file system answers that many at the same time
};

}  // namespace lockstep::transfer
