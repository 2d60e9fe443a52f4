// One user's store on a node's own disk: complete, read-only copies of packed data ("objects") that the
// user's jobs share. A crash at any point leaves the old state or the new one, and what it left half-done is
// removed by the next call.
//
//   objects/NAME/object.json      what it is a copy of
//   objects/NAME/files/           the pack: shards and index, each 0444, to be hard-linked into jobs' folders
//   objects/.incoming-NAME/       being copied; stale once nobody holds the lock
//   objects/.removed-NAME/        being removed
//   locks/NAME                    flock: exclusive to copy or remove, shared to check
//   leases/NAME                   flock: shared by whoever uses the object; a leased object is not removed
//
// Threads: a Store may be used from several threads and processes at once; locks, leases and incoming folders
// belong to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/file_system.h"

namespace lockstep::cache {

struct ObjectInfo {
  std::string name;          ///< 32 hex digits
  std::string source;        ///< absolute path of what it is a copy of
  std::uint64_t bytes = 0;   ///< of all its files
  std::int64_t created = 0;  ///< seconds since 1970
};

/// A lock or a lease: held until it is destroyed or the process ends, however it ends.
class Hold {
 public:
  explicit Hold(UniqueFd fd) : fd_(std::move(fd)) {}
  /// The descriptor that carries the lock, to be handed to a process that outlives this one.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

/// A folder for an object's files that becomes the object when it is published, and vanishes when it is not.
class Incoming {
 public:
  Incoming(FileSystem& system, std::filesystem::path objects, std::string name);
  Incoming(Incoming&&) = delete;
  ~Incoming();

  /// Put the files here, synced; publish() makes them read-only.
  std::filesystem::path files() const { return folder_ / "files"; }

  /// Makes it the object of its name, durably. Throws Error; the object is then as it was before.
  void publish(const ObjectInfo& info);

 private:
  void discard() noexcept;

  FileSystem& system_;
  std::filesystem::path objects_;
  std::string name_;
  std::filesystem::path folder_;
  bool published_ = false;
};

class Store {
 public:
  /// Makes what is missing of the store's folders (not their parent). Throws Error where the folder belongs
  /// to someone else, or is a link.
  explicit Store(std::filesystem::path folder, FileSystem& system = FileSystem::real());

  bool has(const std::string& name) const;
  /// Of an object that is there.
  ObjectInfo info(const std::string& name) const;
  /// The folder of an object's files.
  std::filesystem::path files(const std::string& name) const { return objects_ / name / "files"; }
  /// All objects by name.
  std::vector<ObjectInfo> list() const;

  /// Takes an object's lock; calls `waiting` once if another process has it, then waits.
  Hold lock(const std::string& name, FileSystem::LockKind kind, const std::function<void()>& waiting = {});

  /// Begins a new object. The caller holds its exclusive lock until after publish().
  Incoming begin(const std::string& name);

  /// Removes an object at once for everyone who comes later; hard links and open files stay. The caller holds
  /// its exclusive lock.
  void remove(const std::string& name);

  /// Keeps an object from being removed to make room. Throws Error where it is not there (any more).
  Hold lease(const std::string& name);
  /// True while anybody holds a lease.
  bool leased(const std::string& name);

  /// Removes what killed processes left half-done; returns how many folders. Work in progress elsewhere is
  /// left alone.
  int recover();

 private:
  std::optional<Hold> try_lock(const std::filesystem::path& file, FileSystem::LockKind kind, bool wait);

  FileSystem& system_;
  std::filesystem::path folder_;
  std::filesystem::path objects_;
};

}  // namespace lockstep::cache
