// One user's store on a node's own disk: complete, read-only copies of data ("objects") that the user's jobs
// share. A crash at any point leaves the old state or the new one; the next call removes or continues what
// was left unfinished.
//
//   objects/NAME/object.json      what it is a copy of; its modification time is the object's last use
//   objects/NAME/files/           the data, each file 0444, hard-linked into jobs' folders
//   objects/.incoming-NAME/       being copied; resumed or removed once nobody holds the lock
//   objects/.removed-NAME/        being removed
//   locks/NAME                    flock: exclusive to copy or remove, shared to check and to take a lease
//   locks/.room                   flock: held while a process evicts objects to make space
//   leases/held/JOB.STEP          flock: held, shared, by slurmstepd for as long as the step lives
//   leases/NAME/JOB.STEP[-...]    a hard link to that file: the step uses the object
//   jobs/JOB/                     the jobs' folders (staging/step/job_folder.h)
//
// Threads: several threads and processes may use a Store at once; locks and incoming folders belong to one
// thread at a time.
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
#include "staging/cache/object.h"

namespace lockstep::cache {

/// A time of the node's clock, as in files' modification times.
using Time = std::chrono::sys_time<std::chrono::nanoseconds>;

/// a + b, or the largest number if that overflows.
std::uint64_t sum(std::uint64_t a, std::uint64_t b);

struct ObjectUsage {
  ObjectInfo info;      ///< without its list of files; bytes as measured, if measuring was requested
  Time last_use;        ///< not later than now; 1970 if the recorded time is impossible
  std::string problem;  ///< why its description cannot be read, or ""
};

/// A copy under way, or a partial copy that a process left.
struct IncomingUsage {
  std::string name{};
  std::uint64_t reserved = 0;  ///< bytes that it will hold
  std::uint64_t present = 0;   ///< bytes that are there
  bool alive = false;          ///< a process is copying it
  Time newest{};               ///< when something was last written there
  /// The bytes that count for it.
  std::uint64_t bytes() const { return present + bytes_pending(); }
  std::uint64_t bytes_pending() const { return alive && reserved > present ? reserved - present : 0; }
};

struct Usage {
  std::vector<ObjectUsage> objects;
  std::vector<IncomingUsage> incoming;
  /// Bytes of files that only jobs' folders still hold: of objects that have been removed or replaced.
  std::uint64_t jobs = 0;

  std::uint64_t bytes() const { return sum(bytes_present(), bytes_pending()); }
  std::uint64_t bytes_present() const;
  /// What the copies under way will still add.
  std::uint64_t bytes_pending() const;
};

/// Bytes that a file, or the files below a folder, occupy, without holes, and when the newest of them was changed.
struct Measure {
  std::uint64_t bytes = 0;
  Time newest;
};
Measure measure(FileSystem& system, const std::filesystem::path& folder);

/// Bytes of the files in jobs' folders that have no name outside them.
std::uint64_t bytes_only_in_jobs(FileSystem& system, const std::filesystem::path& jobs);

/// A file's modification time.
Time modified(const struct stat& status);
Time now();

/// Quota or disk leave too little space. The message ("needs 3 GiB, quota ...") continues a line that
/// begins with the source's name.
class NoSpace : public Error {
 public:
  using Error::Error;
};

/// The object exists, but this step cannot protect it from removal: the step's lease file and the store are
/// on different file systems (the RAM tier and a shared store on disk), or the lease cannot be made there.
/// Make a separate copy.
class NoLease : public Error {
 public:
  using Error::Error;
};

/// The process that holds an object's lock makes no progress with the copy: it is stopped or hangs.
class NoProgress : public Error {
 public:
  using Error::Error;
};

struct StoreOptions {
  /// Bytes that this store may hold; 0: no limit.
  std::uint64_t quota = 0;
  /// Bytes of the store's disk that a new copy leaves free, whoever uses the rest; 0: a copy may fill the disk.
  std::uint64_t min_free = 0;
  /// An object without lease is evicted only if its last use is at least this long ago.
  std::chrono::seconds keep{600};
  /// How long a process of this user that makes space may show no progress before begin() gives up.
  std::chrono::milliseconds space_timeout = std::chrono::minutes(10);
  /// Called once with a line for the user if making space waits for another process for `space_notice`.
  std::function<void(const std::string& line)> notice{};
  std::chrono::milliseconds space_notice = std::chrono::seconds(10);
};

class Incoming;

/// A lock on an object: held until it is destroyed or the process ends, however it ends.
class ObjectLock {
 public:
  explicit ObjectLock(UniqueFd fd) : fd_(std::move(fd)) {}
  /// The descriptor that carries the lock. A process that inherits it may outlive this one.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

/// A step that uses an object.
struct LeaseHolder {
  std::string step;  ///< "JOB.STEP"
  uid_t user = 0;
};

class Store {
 public:
  /// Makes the store's folders if they are missing, but not their parent. Throws Error if the folder belongs
  /// to another user or is a link.
  explicit Store(std::filesystem::path folder, FileSystem& system = FileSystem::real());
  Store(std::filesystem::path folder, StoreOptions options, FileSystem& system = FileSystem::real());

  const std::filesystem::path& folder() const { return folder_; }

  bool has(const std::string& name) const { return system_.status(objects_ / name).has_value(); }
  /// The description of an object; `brief` leaves out its list of files.
  ObjectInfo info(const std::string& name, bool brief = false) const;
  /// The folder of an object's files.
  std::filesystem::path files(const std::string& name) const { return objects_ / name / "files"; }
  /// All objects by name, without their lists of files.
  std::vector<ObjectInfo> list() const;

  /// Takes an object's lock. If another process has it, calls `waiting` once, then waits. Throws NoProgress
  /// if the other process does not touch the lock file for `timeout`, counted only while this process runs;
  /// 0: no limit.
  ObjectLock lock(const std::string& name, FileSystem::LockKind kind,
                  const std::function<void()>& waiting = {}, std::chrono::milliseconds timeout = {});
  /// Locks out users of the shared store (staging/cache/shared.h). Returns nullopt if one is checking the
  /// object. Never waits.
  std::optional<ObjectLock> lock_readers(const std::string& name);

  /// Begins a new object of `bytes` bytes, or continues a partial copy. If quota or disk would be
  /// exceeded, first evicts unused objects, least recently used first, then partial copies. The caller holds
  /// the object's exclusive lock until after publish(). Throws NoSpace if eviction cannot free enough; then
  /// it has removed nothing.
  Incoming begin(const std::string& name, std::uint64_t bytes);

  /// Removes an object: later calls do not find it, while hard links and open files stay valid. The caller
  /// holds its exclusive lock.
  void remove(const std::string& name);

  /// Protects an object from eviction for as long as a process (slurmstepd) holds a lock on `held_file`, which is in
  /// this store's leases/held. The caller holds the object's lock, shared or exclusive. Throws Error if the object does
  /// not exist (now) or nobody holds the file; NoLease as described above.
  void add_lease(const std::string& name, const std::filesystem::path& held_file);
  /// True while a step holds a lease. Removes leases whose steps have ended.
  bool leased(const std::string& name) { return !leases(name).empty(); }
  std::vector<LeaseHolder> leases(const std::string& name);

  /// Marks an object as used now. The least recently used objects are evicted first.
  void touch(const std::string& name) noexcept;
  Time last_use(const std::string& name) const;

  /// Removes what killed processes left, but partial copies only if they are older than `abandoned`, because
  /// they could be resumed. Leaves work of live processes alone. Returns the number of folders removed.
  int recover(std::chrono::seconds abandoned = std::chrono::hours(24));

  /// True if a lease or a job's folder uses the object.
  bool in_use(const std::string& name);
  /// What the store holds. `measured`: adds up the files' sizes instead of trusting the objects' descriptions.
  Usage usage(bool measured = false);
  IncomingUsage incoming_usage(const std::string& name);
  /// Removes an object unless it is locked, in use, or was used less than `keep` ago. Returns true if it was
  /// removed.
  bool evict(const std::string& name, std::chrono::seconds keep);

 private:
  friend class Incoming;
  friend class Eviction;

  std::optional<ObjectLock> try_lock(const std::filesystem::path& file, FileSystem::LockKind kind, bool wait);
  /// Waits while the lock file's time changes; nullopt if it did not for `timeout`. Calls `each` with the time waited.
  std::optional<ObjectLock> wait_for_lock(
      const std::filesystem::path& file, FileSystem::LockKind kind, std::chrono::milliseconds timeout,
      const std::function<void(std::chrono::milliseconds waited)>& each = {});
  /// Throws Error if the process that holds it makes no progress.
  ObjectLock lock_eviction();
  /// Tells the processes that wait for the eviction lock that this one still works.
  void show_eviction_progress();
  /// The caller holds the eviction lock.
  void make_space(const std::string& name, std::uint64_t bytes);
  std::optional<ObjectUsage> object_usage(const std::string& name, bool measured);
  /// As usage(), but without last uses, and without reading known objects again: putting 1,000 sources calls this 3,000
  /// times. The caller holds the eviction lock.
  Usage known_usage();
  template <typename Look>
  Usage look_at_entries(const Look& look);
  std::uint64_t known_jobs_bytes();
  std::optional<LeaseHolder> read_lease(const std::filesystem::path& file);
  bool linked_elsewhere(const std::filesystem::path& folder) const;
  /// Removes an incoming folder after an error. Does not throw, because the first error says more; recovery
  /// removes what is left. The caller holds the eviction lock.
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
  std::chrono::steady_clock::time_point jobs_until_{};  // when to look at jobs' folders again
};

/// A folder for an object's files, which becomes the object when it is published; for one thread at a time.
/// Removed when it goes out of scope unpublished, unless keep() was called. The partial copy of a killed
/// process stays for the next process that begins the same object.
class Incoming {
 public:
  Incoming(Incoming&&) = delete;
  ~Incoming() {
    if (!published_ && !keep_) discard();
  }

  /// The folder for the files. Sync each file; publish() then makes files and folders read-only.
  std::filesystem::path files() const { return folder_ / "files"; }

  /// True if an earlier copy left files here. They may be incomplete or, after a power failure, wrong: check
  /// them before you use them.
  bool resumed() const { return resumed_; }

  /// Makes the destructor leave the files for the next process that begins the same object.
  void keep() { keep_ = true; }

  /// Reserves space for `bytes` in total, instead of the number that begin() was given. Throws as begin().
  void reserve(std::uint64_t bytes);

  /// Makes the folder the object, durably; `object` is its name if it is not that of begin(). If another process has
  /// published the object meanwhile, this copy is discarded. Throws Error; the store is then as it was before.
  void publish(const ObjectInfo& info, const std::string& object = "");

 private:
  friend class Store;
  Incoming(Store& store, std::string name, std::uint64_t bytes);
  void discard() noexcept;

  Store& store_;
  FileSystem& system_;
  std::string name_;
  std::filesystem::path folder_;
  bool resumed_ = false;
  bool keep_ = false;
  bool published_ = false;
};

}  // namespace lockstep::cache
