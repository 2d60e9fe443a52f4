// Makes and removes folders, as root or as a child that has become the user, in places where users may have
// planted links. Therefore every component is opened from the one above it with O_NOFOLLOW, and ownership is
// checked on the descriptor.
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/leaf/unique_fd.h"

namespace lockstep::spank {

/// An open folder. Functions that throw throw Error naming the path.
class Folder {
 public:
  /// Opens an absolute path that the administrator chose. With `make`, makes missing components: root's, 0755.
  /// Throws if a component is a link, or if the last one does not belong to root or others may write to it.
  static Folder open_root(const std::string& path, bool make);

  /// As open_root(), but makes only the last component: a missing disk must not become a folder on the root disk or in
  /// memory. With `must_be_mount`, also throws unless this folder or the one that contains it is a mount point.
  static Folder open_cache(const std::string& path, bool must_be_mount);

  /// Opens an absolute path without links, whoever owns it: for a process that has become the user.
  static Folder open_path(const std::string& path);

  /// Opens a folder in this one, never through a link. Works also if the owner, who is this process's
  /// user, has removed its own access.
  Folder open(const std::string& name) const;

  /// Makes (or finds) a folder in this one that belongs to uid:gid with this mode. Throws if the name is
  /// something else or another user's.
  Folder own(const std::string& name, uid_t uid, gid_t gid, mode_t mode) const;

  /// Makes (or finds) a file in this one that belongs to the calling user, and takes a shared lock on it (flock), which the
  /// kernel frees with the last process that has the file open. A process that checks the lock takes it exclusively for a
  /// moment, and may remove or rename the file then: the lock is that of the file with this name.
  UniqueFd lock_shared(const std::string& name) const;

  /// Whether the name is that of this open file.
  bool is_name_of(const std::string& name, int fd) const;

  /// Removes a folder in this one with all its contents, but enters no file system that is mounted there. A name that does
  /// not exist is not an error.
  void remove(const std::string& name) const;

  /// The names in this folder, without "." and "..".
  std::vector<std::string> names() const;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  enum class Make { none, last, all };
  static Folder walk(const std::string& path, Make make);
  static Folder checked(Folder folder);
  Folder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

}  // namespace lockstep::spank
