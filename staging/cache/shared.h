// The store that an admin fills (`lockstep-stage prefetch`), as users read it. Users change nothing in it,
// except that their leases are put beside its objects.
//
//   <cache>/shared/objects/NAME/   root's; 0755, or 0750 if only one group may read it
//   <cache>/shared/locks/NAME      0600: for filling and removing, as in each store; users cannot lock it
//   <cache>/shared/leases/NAME/    1777: users' lease files, hard-linked from their own stores; flock, shared:
//                                  held while a user checks the object and takes a lease
//
// Root never waits for a lock that a user can hold: a locked object is not removed and stays as it is.
//
// A user who may not read a source must not get its copy: open the source before you ask here.
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
  /// The store at `folder`; nullopt if there is none. Throws Error if it cannot be trusted: it is not root's,
  /// or others may write to it.
  static std::optional<Shared> open(const std::filesystem::path& folder,
                                    FileSystem& system = FileSystem::real());

  /// Takes an object's lock, shared, so that the object stays while it is checked and leased. Returns nullopt
  /// if the object is missing, being copied or removed, or not readable for this user. Never waits.
  std::optional<ObjectLock> find(const std::string& name) const;

  /// As in Store. The caller has found the object and still holds find()'s lock.
  ObjectInfo info(const std::string& name, bool brief = false) const;
  std::filesystem::path files(const std::string& name) const { return objects_ / name / "files"; }
  /// As Store::add_lease(); `held_file` is in the user's own store. Throws NoLease if that is on another file
  /// system: the object can then be removed at any time, and the user needs a separate copy.
  void add_lease(const std::string& name, const std::filesystem::path& held_file) const;

 private:
  Shared(std::filesystem::path folder, FileSystem& system);

  FileSystem* system_;
  std::filesystem::path folder_;
  std::filesystem::path objects_;
};

/// Makes a published object of a store that the caller owns readable for everyone or for one group, whatever
/// the umask. Does nothing if the object is so already; otherwise throws Error if somebody uses it.
void share(const std::filesystem::path& store, const std::string& name, std::optional<gid_t> group,
           FileSystem& system);

}  // namespace lockstep::cache
