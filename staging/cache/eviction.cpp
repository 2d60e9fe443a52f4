// Makes space for a new object: evicts the least recently used objects first and keeps those in use.

#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

std::uint64_t excess(std::uint64_t wanted, std::uint64_t limit) {
  return wanted > limit ? wanted - limit : 0;
}

}  // namespace

/// One call's work. The caller holds the store's eviction lock.
class Eviction {
 public:
  Eviction(Store& store, std::string name, std::uint64_t bytes)
      : store_(store),
        options_(store.options_),
        name_(std::move(name)),
        bytes_(bytes),
        usage_(store.known_usage()) {
    for (const IncomingUsage& copy : usage_.incoming) {
      if (copy.name == name_) present_ = copy.present;
    }
    std::erase_if(usage_.incoming, [&](const IncomingUsage& copy) { return copy.name == name_; });
    std::erase_if(usage_.objects, [&](const ObjectUsage& object) { return object.info.name == name_; });
    pending_bytes_ = usage_.bytes_pending();
    used_ = usage_.bytes();
    free_ = store.system_.free_bytes(store.folder_);
  }

  void make_space() {
    if (missing() > 0) evict();
  }

 private:
  std::uint64_t over_quota() const {
    return options_.quota > 0 ? excess(sum(used_, bytes_), options_.quota) : 0;
  }
  std::uint64_t over_disk() const {
    return excess(sum(sum(excess(bytes_, present_), pending_bytes_), options_.min_free), free_);
  }
  std::uint64_t missing() const { return std::max(over_quota(), over_disk()); }

  void freed(std::uint64_t bytes) {
    used_ = excess(used_, bytes);
    free_ = sum(free_, bytes);
  }

  /// The objects that may be evicted, least recently used first.
  std::vector<ObjectUsage> idle() {
    std::vector<ObjectUsage> objects;
    for (ObjectUsage& object : usage_.objects) {
      if (store_.in_use(object.info.name)) {
        in_use_ = sum(in_use_, object.info.bytes);
        continue;
      }
      // in_use() may have updated it, for steps that have ended.
      if (store_.has(object.info.name)) object.last_use = store_.last_use(object.info.name);
      if (now() - object.last_use < options_.keep) {
        recent_ = sum(recent_, object.info.bytes);
      } else {
        objects.push_back(object);
      }
    }
    std::stable_sort(objects.begin(), objects.end(),
                     [](const ObjectUsage& a, const ObjectUsage& b) { return a.last_use < b.last_use; });
    return objects;
  }

  void evict() {
    const std::vector<ObjectUsage> objects = idle();
    std::uint64_t possible = 0;
    for (const ObjectUsage& object : objects) possible = sum(possible, object.info.bytes);
    for (const IncomingUsage& copy : usage_.incoming) {
      if (!copy.alive) possible = sum(possible, copy.bytes());
    }
    if (possible < missing()) refuse();
    for (const ObjectUsage& object : objects) {
      if (missing() == 0) return;
      if (store_.evict(object.info.name, options_.keep)) freed(object.info.bytes);
      store_.show_eviction_progress();
    }
    for (const IncomingUsage& copy : usage_.incoming) {
      if (missing() == 0) return;
      if (!copy.alive && store_.remove_incoming(copy.name)) freed(copy.bytes());
      store_.show_eviction_progress();
    }
    if (missing() > 0) refuse();
  }

  [[noreturn]] void refuse() {
    const std::string where = store_.folder_.string();
    if (over_quota() > 0) {
      throw NoSpace(fmt::format(
          "needs {}, quota {}, {} of it in use by running jobs{}; stage less, wait for jobs to end, or ask for a larger quota",
          format_bytes(bytes_), format_bytes(options_.quota), format_bytes(in_use_ + usage_.jobs),
          others_text()));
    }
    const std::string kept = options_.min_free > 0
                                 ? fmt::format(", {} of it must stay free", format_bytes(options_.min_free))
                                 : std::string();
    throw NoSpace(fmt::format("needs {}, and the disk of the cache {} has {} free{}{}; free space there",
                              format_bytes(excess(bytes_, present_)), where,
                              format_bytes(excess(free_, pending_bytes_)), kept, others_text()));
  }

  /// Other uses of the space, if there are any.
  std::string others_text() const {
    std::uint64_t copying = 0;
    for (const IncomingUsage& copy : usage_.incoming) copying = sum(copying, copy.bytes());
    std::string text;
    if (copying > 0) text += fmt::format(", {} being copied", format_bytes(copying));
    if (recent_ > 0) {
      text += fmt::format(", {} used less than {} ago", format_bytes(recent_),
                          format_seconds(static_cast<double>(options_.keep.count())));
    }
    return text;
  }

  Store& store_;
  const StoreOptions& options_;
  std::string name_;
  std::uint64_t bytes_;
  Usage usage_;
  std::uint64_t present_ = 0;        // bytes of this copy that are on the disk
  std::uint64_t pending_bytes_ = 0;  // to other copies, but not written yet
  std::uint64_t used_ = 0;           // without this copy
  std::uint64_t free_ = 0;           // on the disk
  std::uint64_t in_use_ = 0;
  std::uint64_t recent_ = 0;
};

ObjectLock Store::lock_eviction() {
  const fs::path file = folder_ / "locks" / kEvictionLock;
  constexpr auto kKind = FileSystem::LockKind::exclusive;
  if (std::optional<ObjectLock> lock = try_lock(file, kKind, false)) return std::move(*lock);
  bool said = false;
  const auto say = [&](std::chrono::milliseconds waited) {
    if (said || waited < options_.space_notice) return;
    said = true;
    if (options_.notice)
      options_.notice(fmt::format("waiting for another process that makes space in {}", folder_.string()));
  };
  if (std::optional<ObjectLock> lock = wait_for_lock(file, kKind, options_.space_timeout, say))
    return std::move(*lock);
  fail(
      "another process makes space in {} and has made no progress for {}: it is stopped or hangs; find it with lslocks as the holder of {}",
      folder_.string(), format_seconds(std::chrono::duration<double>(options_.space_timeout).count()),
      file.string());
}

void Store::show_eviction_progress() {
  system_.set_modified(folder_ / "locks" / kEvictionLock, now().time_since_epoch().count());
}

void Store::make_space(const std::string& name, std::uint64_t bytes) {
  Eviction(*this, name, bytes).make_space();
}

void Store::drop(const fs::path& incoming) noexcept {
  try {
    system_.remove_all(incoming);
  } catch (const Error&) {
  }
}

// If a job's folder holds hard links to the files, removing the object would free nothing and lose the copy.
bool Store::linked_elsewhere(const fs::path& folder) const {
  if (!is_folder(system_, folder)) return false;
  for (const std::string& name : system_.list_if_there(folder).value_or(std::vector<std::string>())) {
    const auto status = system_.status(folder / name);
    if (!status) continue;
    if (S_ISDIR(status->st_mode) ? linked_elsewhere(folder / name) : status->st_nlink > 1) return true;
  }
  return false;
}

bool Store::in_use(const std::string& name) {
  if (leased(name)) return true;
  if (!is_folder(system_, objects_ / name)) return false;
  try {
    return linked_elsewhere(files(name));
  } catch (const Error&) {
    return has(name);  // unknown
  }
}

bool Store::evict(const std::string& name, std::chrono::seconds keep) {
  const fs::path lock_file = folder_ / "locks" / name;
  const std::optional<ObjectLock> lock = try_lock(lock_file, FileSystem::LockKind::exclusive, false);
  if (!lock || !has(name)) return false;
  // Check the use only with both locks: a process that takes a lease holds one of them.
  const std::optional<ObjectLock> readers =
      is_folder(system_, folder_ / "leases" / name) ? lock_readers(name) : ObjectLock(UniqueFd());
  if (!readers || in_use(name) || now() - last_use(name) < keep) return false;
  remove(name);
  forget(name);
  return true;
}

}  // namespace lockstep::cache
