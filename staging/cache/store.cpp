#include "staging/cache/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <thread>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/layout.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

namespace {

/// Makes only the last folder of a path: whoever misspells a disk's name must not fill another.
void make_cache(FileSystem& system, const fs::path& folder) {
  try {
    make_own_folder(system, folder);
  } catch (const Error&) {
    fs::path missing;
    const fs::path made = (fs::absolute(folder) / ".").lexically_normal().parent_path();  // also of "a/"
    for (fs::path above = made.parent_path(); above.has_relative_path() && !system.status(above);
         above = above.parent_path()) {
      missing = above;
    }
    if (missing.empty()) throw;
    fail("cannot make the cache {}: the folder {} is missing; make it, or keep the cache elsewhere",
         folder.string(), missing.string());
  }
}

}  // namespace

Store::Store(fs::path folder, FileSystem& system) : Store(std::move(folder), StoreOptions{}, system) {
}

Store::Store(fs::path folder, StoreOptions options, FileSystem& system)
    : system_(system),
      options_(std::move(options)),
      folder_(std::move(folder)),
      objects_(folder_ / "objects") {
  make_cache(system_, folder_);
  for (const fs::path& made : {folder_, objects_, folder_ / "locks", folder_ / "leases"}) {
    if (made != folder_) make_own_folder(system_, made);
    const std::optional<struct stat> status = system_.status(made);
    if (!status || !S_ISDIR(status->st_mode)) fail("the cache {} is not a folder", made.string());
    if (status->st_uid != ::geteuid()) {
      fail("the cache {} belongs to user {}, not to {}; name one of your own", made.string(), status->st_uid,
           ::geteuid());
    }
  }
  restore_modes(system_, folder_);
}

bool Store::has(const std::string& name) const {
  return system_.status(objects_ / name).has_value();
}

ObjectInfo Store::info(const std::string& name, bool brief) const {
  return read_object(objects_ / name / kDescription, name, brief);
}

std::vector<ObjectInfo> Store::list() const {
  std::vector<ObjectInfo> objects;
  for (const std::string& name : system_.list(objects_)) {
    if (!object_of(name).empty()) continue;
    try {
      objects.push_back(info(name, true));
    } catch (const Error&) {
      if (has(name)) throw;  // otherwise it was removed meanwhile
    }
  }
  return objects;
}

std::optional<Hold> Store::try_lock(const fs::path& file, FileSystem::LockKind kind, bool wait) {
  for (;;) {
    UniqueFd fd = system_.open(file, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!system_.lock(fd.get(), kind, wait, file)) return {};
    // Lock files may be removed by who holds them exclusively: a lock on a file without a name protects
    // nothing.
    struct stat locked {};
    const std::optional<struct stat> named = system_.status(file);
    if (::fstat(fd.get(), &locked) == 0 && named && named->st_ino == locked.st_ino)
      return Hold(std::move(fd));
  }
}

Hold Store::lock(const std::string& name, FileSystem::LockKind kind, const std::function<void()>& waiting,
                 std::chrono::milliseconds patience) {
  const fs::path file = folder_ / "locks" / name;
  if (std::optional<Hold> hold = try_lock(file, kind, false)) return std::move(*hold);
  if (waiting) waiting();
  if (patience.count() == 0) return std::move(*try_lock(file, kind, true));
  return wait_for_lock(name, kind, patience);
}

// Counted in looks: while this process is stopped with the other one, as in a suspended job, no time passes.
Hold Store::wait_for_lock(const std::string& name, FileSystem::LockKind kind,
                          std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kLook(50);
  constexpr int kMeasures = 20;  // in that time; a copy may have many files
  const fs::path file = folder_ / "locks" / name;
  const fs::path copy = hidden(objects_, kIncoming, name);
  Measure seen = measure(system_, copy);
  std::chrono::milliseconds quiet{};
  std::chrono::milliseconds unmeasured{};
  for (;;) {
    std::this_thread::sleep_for(kLook);
    if (std::optional<Hold> hold = try_lock(file, kind, false)) return std::move(*hold);
    quiet += kLook;
    unmeasured += kLook;
    if (unmeasured < patience / kMeasures) continue;
    unmeasured = {};
    const Measure now_there = measure(system_, copy);
    if (now_there.bytes != seen.bytes || now_there.newest != seen.newest) quiet = {};
    seen = now_there;
    if (quiet >= patience) {
      throw NoProgress(fmt::format(
          "the process that has locked {} has done nothing for {}: it is stopped or hangs; lslocks names it",
          file.string(), format_seconds(std::chrono::duration<double>(patience).count())));
    }
  }
}

std::optional<Hold> Store::lock_readers(const std::string& name) {
  const fs::path folder = folder_ / "leases" / name;
  make_own_folder(system_, folder);
  UniqueFd fd = system_.open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!system_.lock(fd.get(), FileSystem::LockKind::exclusive, false, folder)) return {};
  return Hold(std::move(fd));
}

Incoming Store::begin(const std::string& name, std::uint64_t bytes) {
  const Hold room = lock_room();
  std::optional<UniqueFd> claim = make_room(name, bytes);
  return {*this, name, bytes, std::move(claim)};
}

void Store::remove(const std::string& name) {
  const fs::path removed = hidden(objects_, kRemoved, name);
  {
    const std::lock_guard known(known_mutex_);
    known_bytes_.erase(name);
    jobs_until_ = {};  // a job's folder may be the only one that has its files now
  }
  system_.remove_all(removed);
  system_.rename(objects_ / name, removed);
  system_.remove_all(removed);
  system_.sync_folder(objects_);
}

}  // namespace lockstep::cache
