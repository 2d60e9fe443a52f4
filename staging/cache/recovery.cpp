// Removes what killed processes left.

#include <set>

#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

bool Store::remove_incoming(const std::string& name) {
  const std::optional<ObjectLock> lock =
      try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
  if (!lock) return false;
  system_.remove_all(hidden(objects_, kIncoming, name));
  if (!has(name)) forget(name);
  return true;
}

// The caller holds the object's exclusive lock. A process that waits for it then notices that the lock file was
// unlinked.
void Store::forget(const std::string& name) {
  const fs::path leases = folder_ / "leases" / name;
  const auto status = system_.status(leases);
  if (status && !(S_ISDIR(status->st_mode) && leased(name))) system_.remove_all(leases);
  system_.unlink(folder_ / "locks" / name);
}

int Store::recover_folders(const std::vector<std::string>& entries, std::chrono::seconds abandoned) {
  int removed = 0;
  for (const std::string& entry : entries) {
    const std::string name = object_of(entry);
    if (name.empty()) continue;
    const std::optional<ObjectLock> lock =
        try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
    if (!lock) continue;  // its copy is under way
    if (entry.starts_with(kIncoming) && is_folder(system_, objects_ / entry) &&
        now() - measure(system_, objects_ / entry / "files").newest < abandoned)
      continue;
    system_.remove_all(objects_ / entry);
    if (!has(name) && !system_.status(hidden(objects_, kIncoming, name))) forget(name);
    ++removed;
  }
  return removed;
}

// Removes locks and leases of objects that no longer exist.
void Store::recover_names(const fs::path& folder, const std::set<std::string>& known) {
  for (const std::string& name : system_.list(folder)) {
    if (known.contains(name) || name == kEvictionLock || name == kHeld) continue;
    const std::optional<ObjectLock> lock =
        try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
    if (!lock) continue;  // a process is about to make the object
    if (!has(name) && !system_.status(hidden(objects_, kIncoming, name))) forget(name);
  }
}

int Store::recover(std::chrono::seconds abandoned) {
  const std::vector<std::string> entries = system_.list(objects_);
  const int removed = recover_folders(entries, abandoned);
  std::set<std::string> known;
  for (const std::string& entry : entries) known.insert(object_of(entry).empty() ? entry : object_of(entry));
  recover_names(folder_ / "locks", known);
  recover_names(folder_ / "leases", known);
  return removed;
}

}  // namespace lockstep::cache
