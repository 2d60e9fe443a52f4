#include <ctime>

#include "common/error.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

/// Makes files 0444, or 0555 if their owner may execute them, and folders 0555, and the names in them durable.
void seal(FileSystem& system, const fs::path& folder) {
  for (const std::string& name : system.list(folder)) {
    const fs::path path = folder / name;
    const auto status = system.status(path);
    if (status && S_ISDIR(status->st_mode)) {
      seal(system, path);
    } else if (status && S_ISREG(status->st_mode)) {
      system.change_mode(path, (status->st_mode & S_IXUSR) != 0 ? 0555 : 0444);
    } else {
      fail("{} is neither a file nor a folder, so it cannot be part of an object", path.string());
    }
  }
  system.sync_folder(folder);
  system.change_mode(folder, 0555);
}

}  // namespace

Incoming Store::begin(const std::string& name, std::uint64_t bytes) {
  const ObjectLock evicting = lock_eviction();
  make_space(name, bytes);
  return {*this, name, bytes};
}

Incoming::Incoming(Store& store, std::string name, std::uint64_t bytes)
    : store_(store),
      system_(store.system_),
      name_(std::move(name)),
      folder_(hidden(store.objects_, kIncoming, name_)) {
  try {
    (void)system_.make_folder(folder_, 0700);
    // The folders are read-only if the copy was killed while it was published.
    if (!system_.make_folder(files(), 0700)) unseal(system_, folder_);
    resumed_ = !system_.list(files()).empty();
    write_reserved(system_, folder_, bytes);
  } catch (const Error&) {
    if (!resumed_) store_.drop(folder_);
    throw;
  }
}

void Incoming::discard() noexcept {
  try {
    const ObjectLock evicting = store_.lock_eviction();
    store_.drop(folder_);
  } catch (const Error&) {
    // Recovery removes the folder later.
  }
}

void Incoming::publish(const ObjectInfo& info, const std::string& object) {
  const std::string& name = object.empty() ? name_ : object;
  ObjectInfo described = info;
  described.created = std::time(nullptr);
  const fs::path description = folder_ / kDescription;
  if (resumed_) system_.remove_all(description);
  system_.write_file(description, to_json(described), 0444);
  system_.unlink(folder_ / kReserved);
  seal(system_, files());
  system_.sync_folder(folder_);
  try {
    system_.rename(folder_, store_.objects_ / name);
  } catch (const Error&) {
    if (!store_.has(name)) throw;
    unseal(system_, folder_);  // another process has published its copy first
    return;
  }
  published_ = true;
  system_.sync_folder(store_.objects_);
}

void Incoming::reserve(std::uint64_t bytes) {
  const ObjectLock evicting = store_.lock_eviction();
  store_.make_space(name_, bytes);
  write_reserved(system_, folder_, bytes);
}

}  // namespace lockstep::cache
