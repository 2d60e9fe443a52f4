// The store that an admin fills (`lockstep-stage prefetch`), as users read it: nothing is changed in it but
// that leases are put beside its objects.
//
//   <cache>/shared/objects/NAME/   root's; 0755, or 0750 for the group that may read it
//   <cache>/shared/locks/NAME      0600: whoever fills or removes it, as in each store; users cannot lock it
//   <cache>/shared/leases/NAME/    1777: users' lease files, hard-linked from their own stores; flock,
//   shared:
//                                  who checks the object and takes a lease
//
// Root never waits for what a user can lock: an object that is locked is not removed and stays as it is.
//
// Who may not read the source must not be served its copy: open the source before you ask here.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/file_system.h"
#include "staging/cache/object.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

class Shared {
 public:
  /// The store at `folder`, or nothing where there is none. Throws Error where there is one that cannot be
  /// trusted: not root's, or others may write to it.
  static std::optional<Shared> open(const std::filesystem::path& folder,
                                    FileSystem& system = FileSystem::real());

  /// Takes an object's lock, shared, so that it stays while it is checked and leased. Nothing where it is not
  /// there, being copied or removed, or not for this user. Never waits.
  std::optional<Hold> find(const std::string& name) const;

  /// As in Store; the caller has found the object and keeps what find() gave.
  ObjectInfo info(const std::string& name, bool brief = false) const;
  std::filesystem::path files(const std::string& name) const { return objects_ / name / "files"; }
  /// As Store::hold(); `held_file` is in the user's own store. Throws NoLease where that is on another file
  /// system: the object can then go at any time, and the user needs a copy of his own.
  void hold(const std::string& name, const std::filesystem::path& held_file) const;

 private:
  Shared(std::filesystem::path folder, FileSystem& system);

  FileSystem* system_;
  std::filesystem::path folder_;
  std::filesystem::path objects_;
};

/// Opens a published object of a store that the caller owns to readers: all, or one group. Whatever the
/// umask. Where that is so already nothing is touched; throws Error where it is not and somebody uses the
/// object.
void share(const std::filesystem::path& store, const std::string& name, std::optional<gid_t> group,
           FileSystem& system);

}  // namespace lockstep::cache
