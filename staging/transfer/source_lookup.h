// The objects that all steps of putting one source use, and the first of these steps: which object of the cache is the copy of
// the source, and whether this node has a good one. Each step takes the result of the previous one:
//
//   source_lookup.h  look_at_source()   the source and the name of its object in the cache
//                    find_or_lock()     a good copy, or the right to make one
//   new_copy.h       begin_copy()       the list of the source's files, in the cache
//                    NewCopy            the copy of the files; publish() returns it as a found one
//
// find_or_copy() does all of it on one node. Nodes that share the work do the same steps with exchanges in
// between (cooperative_put.cpp).
//
// Threads: SourceLookup one at a time; the rest from any. check_copy() starts its own threads.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/pending_calls.h"
#include "common/thread.h"
#include "staging/cache/shared.h"
#include "staging/cache/store.h"
#include "staging/transfer/copy/limits.h"
#include "staging/transfer/put.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

/// Shows other processes that this one, which holds locks, is working. It may work without copying: it waits for other nodes,
/// reads a copy back, or removes old objects. Processes that wait for a lock look at the time of the lock file (Store::lock()).
/// It starts its thread with the first file, and has joined it when the destructor returns.
class Heartbeat {
 public:
  /// Touches the open files once in each `beat`, except while a system call of this process has been pending for longer
  /// than `call_timeout`.
  explicit Heartbeat(std::chrono::milliseconds call_timeout,
                     std::chrono::milliseconds beat = std::chrono::seconds(1))
      : call_timeout_(call_timeout), beat_(beat), calls_(PendingCalls::of_this_process()) {}

  /// A file that is touched until this object ends.
  class Beating {
   public:
    Beating() = default;
    Beating(Heartbeat& heartbeat, int fd) : heartbeat_(&heartbeat), fd_(fd) {}
    Beating(Beating&& other) noexcept { *this = std::move(other); }
    Beating& operator=(Beating&& other) noexcept {
      std::swap(heartbeat_, other.heartbeat_);
      std::swap(fd_, other.fd_);
      return *this;
    }
    Beating(const Beating&) = delete;
    Beating& operator=(const Beating&) = delete;
    ~Beating() {
      if (heartbeat_ != nullptr) heartbeat_->stop_touching(fd_);
    }

   private:
    Heartbeat* heartbeat_ = nullptr;
    int fd_ = -1;
  };

  /// The file must stay open, and this heartbeat must live, as long as the result.
  Beating touch(int fd) {
    const std::lock_guard lock(mutex_);
    files_.insert(fd);
    if (!thread_.joinable())
      thread_ = new_thread<std::jthread>([this](const std::stop_token& stop) { run(stop); });
    return {*this, fd};
  }

 private:
  void stop_touching(int fd) {
    const std::lock_guard lock(mutex_);
    files_.erase(files_.find(fd));
  }
  void run(const std::stop_token& stop) {
    const int checks = static_cast<int>(call_timeout_ / beat_);
    std::condition_variable_any ended;
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!calls_.look(checks)) {
        for (const int fd : files_) ::futimens(fd, nullptr);
      }
      ended.wait_for(lock, stop, beat_, [] { return false; });
    }
  }

  std::chrono::milliseconds call_timeout_;
  std::chrono::milliseconds beat_;
  PendingCalls calls_;
  std::mutex mutex_;
  std::multiset<int> files_;
  std::jthread thread_;
};

/// A good copy of a source on this node. It is not removed while this object lives.
struct FoundCopy : CopyFacts {
  std::filesystem::path files;  ///< the folder of its files: `path`, unless the user named one file
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
  /// The result, without its CopyFacts.
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
};

/// Checks the files of an object in `folder`: against their index, or else against the object.json beside it.
/// Throws Error that names the damaged file. A full check calls `checked` after each file, with its bytes, from
/// several threads.
void check_copy(const std::filesystem::path& folder, Verify verify, int threads,
                const std::function<void(std::uint64_t bytes)>& checked = {});

/// Looks at the source on this node.
Manifest look_at_source(const PutContext& context);

/// Takes over what another node saw: the name of the object, whether it is a pack, and source_version(). The list of files is
/// still missing. Throws Error if this node sees another index there.
Manifest adopt_identity(const PutContext& context, const std::string& node, const std::string& object,
                        bool packed, const std::string& version);

/// Throws Error if this node cannot read the source, even if its data comes from other nodes.
void check_readable(const PutContext& context);

/// Throws Error if the cache lies in the source.
void refuse_own_cache(const PutContext& context, const Manifest& manifest);

/// The right to copy an object.
struct CopyLock {
  cache::ObjectLock lock;
  Heartbeat::Beating heartbeat;  // ends before the lock
  std::string incoming{};        ///< the name of the copy while it is made, if it is not the object's
};

/// Another process copies the object.
struct Busy {};

class SourceLookup {
 public:
  SourceLookup(const PutContext& context, Manifest manifest)
      : context_(context), manifest_(std::move(manifest)) {}

  const Manifest& manifest() const { return manifest_; }

  using Result = std::variant<FoundCopy, CopyLock, Busy>;
  /// Returns a good copy, leased, or else the right to make one. If another process copies the object, waits
  /// for it, or returns Busy if `wait` is false. Throws cache::NoProgress if the other process makes none.
  Result find_or_lock(bool wait);

  /// The right to make a second copy beside that of another process. The first one that is complete becomes the object.
  CopyLock lock_own_copy(const std::string& step);

  /// Reads every byte of a copy. If it is damaged, removes the copy and returns true; a shared copy stays, but this put
  /// no longer uses it.
  bool remove_if_damaged(FoundCopy& copy);

  /// The object's files, without a pack's index.
  std::vector<ManifestFile> files_of(const FoundCopy& copy) const;
  /// One digest of all files that no index describes; "" for a pack.
  std::string content_of(const FoundCopy& copy) const;

 private:
  std::optional<FoundCopy> find_shared();
  bool check_shared();
  void check_readable_files(const std::filesystem::path& copy) const;
  bool check(Verify verify);
  FoundCopy found(cache::ObjectLock lock, bool shared);
  cache::ObjectInfo info(bool shared, bool brief) const;
  cache::ObjectLock lock(FileSystem::LockKind kind, bool wait);
  CopyLock beating(cache::ObjectLock lock, std::string incoming = {}) const;

  const PutContext& context_;
  Manifest manifest_;
  std::optional<cache::Shared> shared_;
  bool shared_damaged_ = false;
  bool damage_seen_ = false;  // of the copy in the user's store
  bool waited_ = false;
};

}  // namespace lockstep::transfer
