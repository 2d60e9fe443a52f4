#include "staging/cache/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "common/error.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIncoming = ".incoming-";
constexpr std::string_view kRemoved = ".removed-";

/// The object that a hidden folder belongs to, or "".
std::string object_of(const std::string& entry) {
  for (const std::string_view prefix : {kIncoming, kRemoved}) {
    if (entry.starts_with(prefix)) return entry.substr(prefix.size());
  }
  return {};
}

fs::path hidden(const fs::path& objects, std::string_view prefix, const std::string& name) {
  return objects / (std::string(prefix) + name);
}

}  // namespace

Incoming::Incoming(FileSystem& system, fs::path objects, std::string name)
    : system_(system),
      objects_(std::move(objects)),
      name_(std::move(name)),
      folder_(hidden(objects_, kIncoming, name_)) {
  system_.remove_all(folder_);  // of a process that was killed: we hold the lock, so it is nobody's
  try {
    system_.make_folder(folder_, 0700);
    system_.make_folder(files(), 0700);
  } catch (const Error&) {
    discard();
    throw;
  }
}

Incoming::~Incoming() {
  if (!published_) discard();
}

void Incoming::discard() noexcept {
  try {
    system_.remove_all(folder_);
  } catch (const Error&) {
    // The error that brought us here says more; the next call's recovery removes the folder.
  }
}

void Incoming::publish(const ObjectInfo& info) {
  const nlohmann::json description = {
      {"source", info.source}, {"bytes", info.bytes}, {"created", std::time(nullptr)}};
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  system_.write_file(folder_ / "object.json", description.dump(-1, ' ', false, kReplace) + "\n", 0444);
  for (const std::string& file : system_.list(files())) system_.change_mode(files() / file, 0444);
  system_.sync_folder(files());
  system_.change_mode(files(), 0555);
  system_.sync_folder(folder_);
  system_.rename(folder_, objects_ / name_);
  published_ = true;
  system_.sync_folder(objects_);
}

Store::Store(fs::path folder, FileSystem& system)
    : system_(system), folder_(std::move(folder)), objects_(folder_ / "objects") {
  for (const fs::path& made : {folder_, objects_, folder_ / "locks", folder_ / "leases"}) {
    system_.make_folder(made, 0700);
    const std::optional<struct stat> status = system_.status(made);
    if (!status || !S_ISDIR(status->st_mode)) fail("the cache {} is not a folder", made.string());
    if (status->st_uid != ::geteuid()) {
      fail("the cache {} belongs to user {}, not to {}; name one of your own", made.string(), status->st_uid,
           ::geteuid());
    }
  }
}

bool Store::has(const std::string& name) const {
  return system_.status(objects_ / name).has_value();
}

ObjectInfo Store::info(const std::string& name) const {
  const fs::path file = objects_ / name / "object.json";
  const auto description = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (!description.is_object()) fail("{}: damaged; put the source again with --verify full", file.string());
  return {.name = name,
          .source = description.value("source", ""),
          .bytes = description.value("bytes", std::uint64_t{0}),
          .created = description.value("created", std::int64_t{0})};
}

std::vector<ObjectInfo> Store::list() const {
  std::vector<ObjectInfo> objects;
  for (const std::string& name : system_.list(objects_)) {
    if (!object_of(name).empty()) continue;
    try {
      objects.push_back(info(name));
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

Hold Store::lock(const std::string& name, FileSystem::LockKind kind, const std::function<void()>& waiting) {
  const fs::path file = folder_ / "locks" / name;
  if (std::optional<Hold> hold = try_lock(file, kind, false)) return std::move(*hold);
  if (waiting) waiting();
  return std::move(*try_lock(file, kind, true));
}

Incoming Store::begin(const std::string& name) {
  return {system_, objects_, name};
}

void Store::remove(const std::string& name) {
  const fs::path removed = hidden(objects_, kRemoved, name);
  system_.remove_all(removed);
  system_.rename(objects_ / name, removed);
  system_.remove_all(removed);
  system_.sync_folder(objects_);
}

Hold Store::lease(const std::string& name) {
  std::optional<Hold> hold = try_lock(folder_ / "leases" / name, FileSystem::LockKind::shared, true);
  if (!has(name)) fail("object {} is not in the cache {}; put its source again", name, folder_.string());
  return std::move(*hold);
}

bool Store::leased(const std::string& name) {
  const fs::path file = folder_ / "leases" / name;
  const std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDWR | O_NOFOLLOW);
  return fd && !system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, file);
}

int Store::recover() {
  int removed = 0;
  for (const std::string& entry : system_.list(objects_)) {
    const std::string name = object_of(entry);
    if (name.empty()) continue;
    const std::optional<Hold> hold =
        try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
    if (!hold) continue;  // its copier is alive
    system_.remove_all(objects_ / entry);
    ++removed;
  }
  return removed;
}

}  // namespace lockstep::cache
