// The seam through which the node-local cache touches files, so that a test can fail or kill it at every
// single call and look at what is left. Public functions throw Error naming the path; behind them stand
// system calls that a derived class may replace.
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

class FileSystem {
 public:
  using Path = std::filesystem::path;

  /// Of flock(2).
  enum class LockKind { shared, exclusive };

  virtual ~FileSystem() = default;

  /// The operating system's.
  static FileSystem& real();

  /// open(2) with O_CLOEXEC.
  UniqueFd open(const Path& path, int flags, mode_t mode = 0644);
  /// As open(), but nothing where the path does not exist.
  std::optional<UniqueFd> open_if_there(const Path& path, int flags);
  /// Bytes read at `offset`, 0 at the end of the file.
  std::size_t read_at(int fd, std::span<std::byte> into, std::uint64_t offset, const Path& path);
  /// Writes all of it at `offset`.
  void write_at(int fd, std::span<const std::byte> from, std::uint64_t offset, const Path& path);
  /// Reserves blocks for `size` bytes, so that a full disk is known before anything is copied. Does nothing
  /// where the file system cannot.
  void allocate(int fd, std::uint64_t size, const Path& path);
  void sync(int fd, const Path& path);
  /// Lets bytes that were written go to the disk now, without waiting for them to be there; a hint.
  void begin_sync(int fd, std::uint64_t offset, std::uint64_t size);
  /// syncfs(2): everything on the file system of an open file. Cheaper than fsync for thousands of small
  /// files.
  void sync_all(int fd, const Path& path);
  /// fsync of a folder: makes names in it durable.
  void sync_folder(const Path& folder);
  /// Of a file or a folder; throws Error where the path names a link, and never follows one.
  void change_mode(const Path& path, mode_t mode);
  /// Gives a file the time of its last change, in nanoseconds since 1970; false where that cannot be. Of what
  /// the path names, a link itself.
  bool set_modified(const Path& path, std::int64_t modified_ns);
  /// Of what the path names, a link itself.
  void change_group(const Path& path, gid_t group);
  void rename(const Path& from, const Path& to);
  /// Lets two names change places at once; false where the file system cannot, and nothing has changed then.
  bool exchange(const Path& a, const Path& b);
  void link(const Path& from, const Path& to);
  /// As link(), but says so where something has that name already, or the two are not on the same file
  /// system.
  enum class Linked { made, name_taken, other_file_system };
  Linked try_link(const Path& from, const Path& to);
  void symlink(const std::string& target, const Path& at);
  void unlink(const Path& path);
  /// As unlink(), but false where another was faster.
  bool unlink_if_there(const Path& path);
  /// False where it was there already.
  bool make_folder(const Path& path, mode_t mode);
  void remove_folder(const Path& path);
  /// Names in a folder, sorted, without "." and "..".
  std::vector<std::string> list(const Path& folder);
  /// The same, but nothing where the folder does not exist.
  std::optional<std::vector<std::string>> list_if_there(const Path& folder);
  /// Takes the lock; waits unless `wait` is false, and returns false where another has it then.
  bool lock(int fd, LockKind kind, bool wait, const Path& path);
  /// Of what the path names, not of what a link points to; nothing where it does not exist.
  std::optional<struct stat> status(const Path& path);

  /// Bytes that an ordinary user may still write where `path` lies.
  std::uint64_t free_bytes(const Path& path);

  /// Removes a file or a folder with all that is in it, read-only folders too; never follows a link, also
  /// when somebody puts links there meanwhile. Nothing there is no error.
  void remove_all(const Path& path);
  /// Creates a file with this content and syncs it.
  void write_file(const Path& path, std::string_view content, mode_t mode);

 protected:
  // As the system calls of these names: -1 and errno.
  virtual int call_open(const char* path, int flags, mode_t mode);
  virtual ssize_t call_pread(int fd, void* into, std::size_t size, off_t offset);
  virtual ssize_t call_pwrite(int fd, const void* from, std::size_t size, off_t offset);
  virtual int call_fallocate(int fd, off_t size);
  virtual int call_fsync(int fd);
  virtual int call_syncfs(int fd);
  virtual int call_sync_file_range(int fd, off_t offset, off_t size);
  virtual int call_chmod(const char* path, mode_t mode);
  virtual int call_lchown(const char* path, uid_t user, gid_t group);
  virtual int call_utimensat(const char* path, const struct timespec* times);
  virtual int call_rename(const char* from, const char* to);
  virtual int call_exchange(const char* a, const char* b);
  virtual int call_link(const char* from, const char* to);
  virtual int call_symlink(const char* target, const char* at);
  virtual int call_unlink(const char* path);
  virtual int call_mkdir(const char* path, mode_t mode);
  virtual int call_rmdir(const char* path);
  virtual int call_flock(int fd, int operation);
  virtual int call_lstat(const char* path, struct stat* into);
  virtual int call_statvfs(const char* path, struct statvfs* into);
  virtual int call_fchmod(int fd, mode_t mode);
  virtual int call_openat(int folder, const char* name, int flags);
  virtual int call_unlinkat(int folder, const char* name, int flags);

 private:
  friend class FileSystemAround;

  /// -1 and errno, as call_chmod().
  int change_mode_of(int path_fd, mode_t mode);
  void remove_below(UniqueFd folder, const Path& path, int depth);
  void remove_entry(int folder, const char* name, bool is_folder, const Path& path, int depth);
};

}  // namespace lockstep
