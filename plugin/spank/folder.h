// Folders made and removed by root, or by a child that has become the user, where users may have planted
// links: every component is opened from the one above with O_NOFOLLOW, and ownership is checked on the
// descriptor.
//
// Threads: safe from any.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep::spank {

/// An open folder. Throwing functions throw Refusal naming the path.
class Folder {
 public:
  /// Opens an absolute path of the administrator's. With `make`, missing components are made root's own 0755.
  /// Refused: a component that is a link; a last component that is not root's or that others may write.
  static Folder open_root(const std::string& path, bool make);

  /// Opens an absolute path, refusing links in it, whoever owns it: for a process that has become the user.
  static Folder open_path(const std::string& path);

  Folder(Folder&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder();

  /// Opens a folder in this one, also where its owner, this process's user, has closed it to himself. Nothing
  /// planted in its place is followed.
  Folder open(const std::string& name) const;

  /// Makes (or finds) a folder in this one that belongs to uid:gid with this mode. Refused where something
  /// else, or somebody else's, is there.
  Folder own(const std::string& name, uid_t uid, gid_t gid, mode_t mode) const;

  /// Makes (or finds) a file in this one that belongs to uid with this mode: for a folder that is root's.
  void own_file(const std::string& name, uid_t uid, mode_t mode) const;

  /// Removes a folder in this one with all that is in it. Nothing there is no error.
  void remove(const std::string& name) const;

  /// What is in this one, without "." and "..".
  std::vector<std::string> names() const;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  static Folder walk(const std::string& path, bool make);
  Folder(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

}  // namespace lockstep::spank
