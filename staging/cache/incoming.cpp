#include "staging/cache/incoming.h"

#include <ctime>

#include "common/error.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTellEvery = std::uint64_t{256} << 20U;  // bytes

/// Files 0444, folders 0555, and the names in them durable.
void seal(FileSystem& system, const fs::path& folder) {
  for (const std::string& name : system.list(folder)) {
    const fs::path path = folder / name;
    const auto status = system.status(path);
    if (status && S_ISDIR(status->st_mode)) {
      seal(system, path);
    } else if (status && S_ISREG(status->st_mode)) {
      system.change_mode(path, 0444);
    } else {
      fail("{} is neither a file nor a folder and cannot be part of an object", path.string());
    }
  }
  system.sync_folder(folder);
  system.change_mode(folder, 0555);
}

}  // namespace

Incoming::Incoming(Store& store, std::string name, std::uint64_t bytes, std::optional<UniqueFd> claim)
    : store_(store),
      system_(store.system_),
      name_(std::move(name)),
      folder_(hidden(store.objects_, kIncoming, name_)),
      claim_(std::move(claim)) {
  try {
    make_own_folder(system_, folder_);
    make_own_folder(system_, files());
    resumed_ = !system_.list(files()).empty();
    // A copy that was killed while it was published has read-only folders.
    if (resumed_) unseal(system_, folder_);
    write_reserved(system_, folder_, bytes);
  } catch (const Error&) {
    if (!resumed_) store_.drop(folder_);
    throw;
  }
}

Incoming::~Incoming() {
  if (!published_ && !keep_) discard();
}

void Incoming::discard() noexcept {
  try {
    const Hold room = store_.lock_room();
    store_.drop(folder_);
  } catch (const Error&) {
    // Nothing was removed then; recovery does it.
  }
}

void Incoming::publish(const ObjectInfo& info) {
  ObjectInfo described = info;
  described.created = std::time(nullptr);
  const fs::path description = folder_ / kDescription;
  if (resumed_) system_.remove_all(description);
  system_.write_file(description, to_json(described), 0444);
  system_.unlink(folder_ / kReserved);
  seal(system_, files());
  system_.sync_folder(folder_);
  if (claim_) store_.write_claim();  // nothing is to come any more
  system_.rename(folder_, store_.objects_ / name_);
  published_ = true;
  system_.sync_folder(store_.objects_);
}

void Incoming::touch() noexcept {
  // No matter whether it works: they then make a copy of their own.
  system_.set_modified(folder_, now().time_since_epoch().count());
}

void Incoming::grown(std::uint64_t bytes) noexcept {
  if (!claim_) return;
  if (!told_) told_ = bytes;  // the claim counts what a resumed copy had
  if (bytes < *told_ + kTellEvery) return;
  try {
    if (store_.tell_arrived(bytes - *told_)) told_ = bytes;
  } catch (const Error&) {
    // The others then know less of a copy that may never be killed.
  }
}

void Incoming::reserve(std::uint64_t bytes) {
  const Hold room = store_.lock_room();
  claim_ = store_.make_room(name_, bytes);
  told_.reset();
  write_reserved(system_, folder_, bytes);
}

}  // namespace lockstep::cache
