// File operations of the node-local cache, with one hook: every system call goes through the virtual call(),
// so that a test can fail it, delay it or kill the process at it, and then look at what is left on disk. The
// public functions throw Error naming the path.
//
// Threads: safe from any, as the system calls are.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/files.h"

namespace lockstep {

/// A system call that a FileSystem is about to make. Fields that the call does not use keep their defaults.
struct FileCall {
  enum class Kind {
    open,
    openat,
    read,
    write,
    fallocate,
    ftruncate,
    fsync,
    syncfs,
    sync_file_range,
    chmod,
    fchmod,
    lchown,
    utimensat,
    rename,
    exchange,
    link,
    symlink,
    unlink,
    unlinkat,
    mkdir,
    rmdir,
    flock,
    lstat,
    statvfs
  };

  Kind kind;
  const char* path;          ///< the file or folder, also for calls that take only a descriptor
  const char* to = nullptr;  ///< the second path of rename, exchange and link; the target of symlink
  int fd = -1;               ///< of `path`; for openat and unlinkat, of the folder that contains it
  int flags = 0;
  mode_t mode = 0;
  gid_t group = 0;
  std::byte* into = nullptr;
  const std::byte* from = nullptr;
  std::size_t size = 0;
  off_t offset = 0;
  const struct timespec* times = nullptr;
  struct stat* status = nullptr;
  struct statvfs* space = nullptr;
};

class FileSystem {
 public:
  using Path = std::filesystem::path;
  using Kind = FileCall::Kind;

  /// The two kinds of flock(2).
  enum class LockKind { shared, exclusive };

  virtual ~FileSystem() = default;

  /// Returns the one that calls the operating system.
  static FileSystem& real();

  /// open(2) with O_CLOEXEC.
  UniqueFd open(const Path& path, int flags, mode_t mode = 0644);
  /// As open(), but returns nullopt if the path does not exist.
  std::optional<UniqueFd> open_if_there(const Path& path, int flags);
  /// Returns the number of bytes read at `offset`, 0 at the end of the file.
  std::size_t read_at(int fd, std::span<std::byte> into, std::uint64_t offset, const Path& path);
  /// Writes all bytes at `offset`.
  void write_at(int fd, std::span<const std::byte> from, std::uint64_t offset, const Path& path);
  /// Reserves blocks for `size` bytes, so that a full disk is noticed before anything is copied. Does nothing
  /// if the file system cannot reserve blocks.
  void allocate(int fd, std::uint64_t size, const Path& path);
  /// Makes the file `size` bytes long, without reserving blocks.
  void set_size(int fd, std::uint64_t size, const Path& path);
  /// Makes these bytes a hole, which reads as zeros. Returns false if the file system has no holes.
  bool make_hole(int fd, std::uint64_t offset, std::uint64_t size, const Path& path);
  void sync(int fd, const Path& path);
  /// Starts writing these bytes to the disk and does not wait for the end. A hint: errors are ignored.
  void begin_sync(int fd, std::uint64_t offset, std::uint64_t size, const Path& path);
  /// syncfs(2): writes out the whole file system of an open file. For thousands of small files this is
  /// cheaper than fsync of each.
  void sync_all(int fd, const Path& path);
  /// fsync of a folder: makes the names in it durable.
  void sync_folder(const Path& folder);
  /// Changes the mode of a file or folder. Throws Error if the path names a symbolic link.
  void change_mode(const Path& path, mode_t mode);
  /// Sets a file's modification time, in nanoseconds since 1970. Does not follow a symbolic link. Returns
  /// false if that fails.
  bool set_modified(const Path& path, std::int64_t modified_ns);
  /// Changes the group of a file or folder. Does not follow a symbolic link.
  void change_group(const Path& path, gid_t group);
  void rename(const Path& from, const Path& to);
  /// Exchanges two names atomically. Returns false, with nothing changed, if the file system cannot do so.
  bool exchange(const Path& a, const Path& b);
  void link(const Path& from, const Path& to);
  /// As link(), but returns the reason if `to` exists or lies on another file system.
  enum class Linked { made, name_taken, other_file_system };
  Linked try_link(const Path& from, const Path& to);
  void symlink(const std::string& target, const Path& at);
  void unlink(const Path& path);
  /// As unlink(), but returns false if the path no longer exists.
  bool unlink_if_there(const Path& path);
  /// Makes a folder. Returns false if something of that name exists.
  bool make_folder(const Path& path, mode_t mode);
  /// Returns the sorted names in a folder, without "." and "..".
  std::vector<std::string> list(const Path& folder);
  /// As list(), but returns nullopt if the folder does not exist.
  std::optional<std::vector<std::string>> list_if_there(const Path& folder);
  /// Takes the lock. If another process holds it, waits for it, or returns false if `wait` is false.
  bool lock(int fd, LockKind kind, bool wait, const Path& path);
  /// Returns the status of what the path names, a symbolic link included, or nullopt if there is nothing.
  std::optional<struct stat> status(const Path& path);

  /// Returns the number of bytes that an ordinary user may still write to the file system of `path`.
  std::uint64_t free_bytes(const Path& path);

  /// Removes a file, or a folder with all its content, read-only folders included. Never follows a symbolic
  /// link, even if another process creates one at the same time. A path that does not exist is not an error.
  void remove_all(const Path& path);
  /// Creates a file with this content and syncs it.
  void write_file(const Path& path, std::string_view content, mode_t mode);

  /// Makes one system call. On failure returns -1 and sets errno. Tests override this function.
  virtual ssize_t call(const FileCall& call);

 private:
  void remove_below(UniqueFd folder, const Path& path, int depth);
  void remove_entry(int folder, bool is_folder, const Path& path, int depth);
};

}  // namespace lockstep
