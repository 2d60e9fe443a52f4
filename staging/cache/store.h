// One user's store on a node's own disk: complete, read-only copies of data ("objects") that the user's jobs
// share. A crash at any point leaves the old state or the new one, and what it left half-done is removed or
// continued by the next call.
//
//   objects/NAME/object.json      what it is a copy of; its modification time is the object's last use
//   objects/NAME/files/           the data, each file 0444, to be hard-linked into jobs' folders
//   objects/.incoming-NAME/       being copied; to be resumed or removed once nobody holds the lock
//   objects/.removed-NAME/        being removed
//   locks/NAME                    flock: exclusive to copy or remove, shared to check and to take a lease
//   locks/.room                   flock: held while somebody makes room
//   leases/held/JOB.STEP          flock: shared by slurmstepd for as long as the step lives
//   leases/NAME/JOB.STEP[-...]    the same file again: that step uses the object
//   jobs/JOB/                     the jobs' folders (staging/step/step_folder.h)
//
// Threads: a Store may be used from several threads and processes at once; locks and incoming folders belong
// to one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/file_system.h"
#include "staging/cache/incoming.h"
#include "staging/cache/ledger.h"
#include "staging/cache/object.h"
#include "staging/cache/usage.h"

namespace lockstep::cache {

/// Quota, total or disk leave too little room. The message ("needs 3 GiB, quota ...") goes on after the
/// source's name.
class NoRoom : public Error {
 public:
  using Error::Error;
};

/// An object is there, but this step cannot keep it from being removed: its lease file is on another file
/// system than the store (the RAM tier beside a shared store on disk), or the lease cannot be made there. Use
/// one's own copy.
class NoLease : public Error {
 public:
  using Error::Error;
};

/// Whoever has an object's lock does not get on with the copy: the process is stopped, or hangs.
class NoProgress : public Error {
 public:
  using Error::Error;
};

struct StoreOptions {
  /// Bytes that this store may hold; 0: no limit.
  std::uint64_t quota = 0;
  /// Bytes that all stores of the node may hold together; 0: no limit.
  std::uint64_t total = 0;
  /// Where the node's users write down what they hold, so that `total` can be kept (staging/cache/ledger.h).
  std::filesystem::path ledger_folder;
  /// An object without lease is removed to make room only when its last use is at least this long ago.
  std::chrono::seconds keep{600};
};

/// A lock: held until it is destroyed or the process ends, however it ends.
class Hold {
 public:
  explicit Hold(UniqueFd fd) : fd_(std::move(fd)) {}
  /// The descriptor that carries the lock, to be handed to a process that outlives this one.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

/// Somebody who uses an object.
struct Lease {
  std::string step;  ///< "JOB.STEP"
  uid_t user = 0;
};

class Store {
 public:
  /// Makes what is missing of the store's folders (not their parent). Throws Error where the folder belongs
  /// to someone else, or is a link.
  explicit Store(std::filesystem::path folder, FileSystem& system = FileSystem::real());
  Store(std::filesystem::path folder, StoreOptions options, FileSystem& system = FileSystem::real());

  const std::filesystem::path& folder() const { return folder_; }

  bool has(const std::string& name) const;
  /// Of an object that is there; `brief` leaves out its list of files.
  ObjectInfo info(const std::string& name, bool brief = false) const;
  /// The folder of an object's files.
  std::filesystem::path files(const std::string& name) const { return objects_ / name / "files"; }
  /// All objects by name, without their lists of files.
  std::vector<ObjectInfo> list() const;

  /// Takes an object's lock; calls `waiting` once if another process has it, then waits. Throws NoProgress
  /// once nothing has changed in the object's copy for `patience`, which is counted while this process runs;
  /// 0: waits without end.
  Hold lock(const std::string& name, FileSystem::LockKind kind, const std::function<void()>& waiting = {},
            std::chrono::milliseconds patience = {});
  /// Locks out those who come by the shared store (staging/cache/shared.h); nothing where somebody is there.
  /// Never waits.
  std::optional<Hold> lock_readers(const std::string& name);

  /// Begins a new object of `bytes` bytes, or continues one that was left half-done. Where quota, total or
  /// disk would be passed, removes unused objects first, least recently used first, then copies left
  /// half-done. The caller holds the object's exclusive lock until after publish(). Throws NoRoom where there
  /// is not enough to remove; nothing has been removed then.
  Incoming begin(const std::string& name, std::uint64_t bytes);

  /// Removes an object at once for everyone who comes later; hard links and open files stay. The caller holds
  /// its exclusive lock.
  void remove(const std::string& name);

  /// Keeps an object from being removed to make room for as long as somebody, slurmstepd, holds a lock on
  /// `held_file`, which is in this store's leases/held. The caller holds the object's lock, shared or
  /// exclusive. Throws Error where the object is not there (any more), or nobody holds the file; NoLease as
  /// that says.
  void hold(const std::string& name, const std::filesystem::path& held_file);
  /// True while anybody holds a lease. Removes leases whose steps have ended.
  bool leased(const std::string& name) { return !leases(name).empty(); }
  /// Who holds one.
  std::vector<Lease> leases(const std::string& name);

  /// Marks an object as used now. What is not used longest is removed first.
  void touch(const std::string& name) noexcept;
  Time last_use(const std::string& name) const;

  /// Removes what killed processes left half-done, copies that may be resumed only when they are older than
  /// `abandoned`; returns how many folders. Work in progress elsewhere is left alone.
  int recover(std::chrono::seconds abandoned = std::chrono::hours(24));

  /// True where a lease or a job's folder uses it.
  bool in_use(const std::string& name);
  /// What is there. With `measured` every file is looked at, else objects' descriptions are believed.
  Usage usage(bool measured = false);
  /// Of a copy under way.
  IncomingUsage incoming_usage(const std::string& name);
  /// Removes an object unless it is locked, in use, or was used less than `keep` ago; true where it did.
  bool evict(const std::string& name, std::chrono::seconds keep);
  /// Writes down for the node's other users what this store holds.
  void write_claim();
  /// Writes that so many bytes that were to come are there now. False where somebody is making room.
  bool tell_arrived(std::uint64_t bytes);

 private:
  friend class Incoming;
  friend class Room;

  std::optional<Hold> try_lock(const std::filesystem::path& file, FileSystem::LockKind kind, bool wait);
  Hold wait_for_lock(const std::string& name, FileSystem::LockKind kind, std::chrono::milliseconds patience);
  Hold lock_room();
  /// The caller holds the room lock. Returns what keeps the bytes claimed, where they are.
  std::optional<UniqueFd> make_room(const std::string& name, std::uint64_t bytes);
  /// write_claim(), where the caller holds the room lock.
  void claim_usage();
  std::optional<ObjectUsage> object_usage(const std::string& name, bool measured);
  /// As usage(), but without last uses, and what this process knows already is not read again: a call that
  /// puts a thousand sources asks three thousand times. The caller holds the room lock.
  Usage known_usage();
  template <typename Look>
  Usage look_at_entries(const Look& look);
  std::uint64_t known_jobs_bytes();
  Ledger ledger() const;
  std::optional<Lease> look_at(const std::filesystem::path& file);
  bool linked_elsewhere(const std::filesystem::path& folder) const;
  /// Removes an incoming folder after an error, which says more than an error of this would; what is left
  /// recovery removes. The caller holds the room lock.
  void drop(const std::filesystem::path& incoming) noexcept;
  bool remove_incoming(const std::string& name);
  void forget(const std::string& name);
  int recover_folders(const std::vector<std::string>& entries, std::chrono::seconds abandoned);
  void recover_names(const std::filesystem::path& folder, const std::set<std::string>& known);

  FileSystem& system_;
  StoreOptions options_;
  std::filesystem::path folder_;
  std::filesystem::path objects_;
  std::mutex known_mutex_;
  std::map<std::string, std::uint64_t> known_bytes_;  // of objects, which never change
  std::uint64_t jobs_bytes_ = 0;
  std::chrono::steady_clock::time_point jobs_until_{};  // when jobs' folders are to be looked at again
};

}  // namespace lockstep::cache
