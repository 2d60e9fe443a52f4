#include "staging/transfer/source_lookup.h"

#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "common/pending_calls.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/index.h"
#include "staging/transfer/check.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kManyFiles = 10'000;  // packing pays at once

struct WouldWait {};

void try_to_open(const PutContext& context, const fs::path& path) {
  retry_source(context.options.source_pause, [&] {
    const PendingCall call(path);
    if (::access(path.c_str(), R_OK) != 0) fail_errno("cannot open {}", path.string());
  });
}

}  // namespace

void refuse_own_cache(const PutContext& context, const Manifest& manifest) {
  if (manifest.packed() || !context.source.shards.empty()) return;
  const fs::path inside = fs::weakly_canonical(context.store.folder()).lexically_relative(manifest.folder);
  if (inside.empty() || *inside.begin() == "..") return;
  fail("{}: the cache {} lies in it; name a folder without it, or keep the cache elsewhere",
       context.source.name, context.store.folder().string());
}

Manifest look_at_source(const PutContext& context) {
  Manifest manifest = retry_source(context.options.source_pause, [&] { return look_at(context.source); });
  refuse_own_cache(context, manifest);
  if (manifest.files.size() > kManyFiles && manifest.format == pack::Format::plain) {
    context.tally.note(fmt::format("{} files stage and read slowly: {}", manifest.files.size(),
                                   pack::advice_for_folder(manifest.folder, names_of(manifest.files))));
  }
  return manifest;
}

Manifest adopt_identity(const PutContext& context, const SourceIdentity& identity) {
  const Source& source = context.source;
  const std::optional<IndexState> index =
      retry_source(context.options.source_pause, [&] { return index_state(source); });
  if (identity.packed != index.has_value() || (index && pack::to_hex(index->digest) != identity.version))
    fail_changed(source.name, "node " + identity.node);
  Manifest manifest;
  manifest.source = source;
  manifest.folder = source.folder;
  manifest.object = identity.object;
  manifest.seen_by = identity.node;
  manifest.seen_state = identity.packed ? "" : identity.version;
  manifest.one_file = source.one_file;
  if (source.one_file) {
    manifest.main = source.shards.front();
    // The user named a pair of files by their common prefix.
    if (!context.system.status(source.paths.front())) manifest.main += ".bin";
  }
  if (index) {
    manifest.format = pack::Format::tar;
    manifest.index = *index;
  }
  refuse_own_cache(context, manifest);
  return manifest;
}

void check_readable(const PutContext& context) {
  const Source& source = context.source;
  const fs::path path = source.shards.empty() ? source.folder : source.paths.front();
  retry_source(context.options.source_pause, [&] {
    const PendingCall call(path);
    const bool pair = !context.system.status(path);  // of files, named by their common prefix
    if (::access(path.c_str(), R_OK) != 0 && !pair) fail_errno("cannot open {}", path.string());
  });
}

cache::ObjectInfo SourceLookup::info(bool shared, bool brief) const {
  return shared ? shared_->info(manifest_.object, brief) : context_.store.info(manifest_.object, brief);
}

FoundCopy SourceLookup::found(cache::ObjectLock lock, bool shared) {
  FoundCopy copy{.object = manifest_.object,
                 .files = shared ? shared_->files(manifest_.object) : context_.store.files(manifest_.object),
                 .path = {},
                 .bytes = info(shared, true).bytes,
                 .shared = shared,
                 .version = source_version(manifest_),
                 .lock = std::move(lock)};
  copy.path = manifest_.one_file ? copy.files / manifest_.main : copy.files;
  if (shared) return copy;
  if (!context_.options.lease.empty()) context_.store.add_lease(manifest_.object, context_.options.lease);
  context_.store.touch(manifest_.object);
  return copy;
}

bool SourceLookup::check(Verify verify) {
  try {
    check_copy(context_.store.files(manifest_.object), verify, context_.threads());
    return true;
  } catch (const Error& damage) {
    if (!damage_seen_)
      context_.tally.note(fmt::format("the cached copy was damaged and is copied again ({})", damage.what()));
    damage_seen_ = true;
    return false;
  }
}

cache::ObjectLock SourceLookup::lock(FileSystem::LockKind kind, bool wait) {
  const PutEvents& on = context_.options.on;
  const auto waiting = [&] {
    if (!wait) throw WouldWait();
    if (!waited_ && on.waiting) on.waiting(context_.source.name);
    waited_ = true;
  };
  return context_.store.lock(manifest_.object, kind, waiting, context_.options.copier_timeout);
}

SourceLookup::Result SourceLookup::find_or_lock(bool wait) {
  cache::Store& store = context_.store;
  if (std::optional<FoundCopy> copy = find_shared()) return std::move(*copy);
  try {
    {
      cache::ObjectLock readers = lock(FileSystem::LockKind::shared, wait);
      if (store.has(manifest_.object) && check(context_.options.verify))
        return found(std::move(readers), false);
    }
    CopyLock mine{.lock = lock(FileSystem::LockKind::exclusive, wait), .heartbeat = {}, .incoming = {}};
    mine.heartbeat = context_.resources.heartbeat.touch(mine.lock.fd());
    if (!store.has(manifest_.object)) return mine;
    // Another process may have made a copy in between. After damage reads all of it, because a quick check may miss the
    // damage the second time.
    if (check(damage_seen_ ? Verify::full : context_.options.verify))
      return found(std::move(mine.lock), false);
    store.remove(manifest_.object);
    return mine;
  } catch (const WouldWait&) {
    return Busy();
  }
}

CopyLock SourceLookup::lock_own_copy(const std::string& step) {
  std::string name = manifest_.object + "." + step;
  CopyLock mine{
      .lock = context_.store.lock(name, FileSystem::LockKind::exclusive, {}, context_.options.copier_timeout),
      .heartbeat = {},
      .incoming = std::move(name)};
  mine.heartbeat = context_.resources.heartbeat.touch(mine.lock.fd());
  return mine;
}

bool SourceLookup::remove_if_damaged(FoundCopy& copy) {
  try {
    check_copy(copy.files, Verify::full, context_.threads());
    return false;
  } catch (const Error& damage) {
    { const cache::ObjectLock no_longer_read = std::move(copy.lock); }
    if (copy.shared) {
      shared_damaged_ = true;
      context_.tally.note(fmt::format("the shared copy is damaged, tell the admin ({})", damage.what()));
      return true;
    }
    const cache::ObjectLock alone = context_.store.lock(manifest_.object, FileSystem::LockKind::exclusive, {},
                                                        context_.options.copier_timeout);
    if (context_.store.has(manifest_.object)) context_.store.remove(manifest_.object);
    context_.tally.note(fmt::format("the cached copy was damaged and is copied again ({})", damage.what()));
    return true;
  }
}

// The shared copy is only for users who can read the files at the source. For a pack, tries only some of its
// shards: it may have thousands, and the user has already read its index.
void SourceLookup::check_readable_files(const fs::path& copy) const {
  std::vector<std::string> names = names_of(manifest_.files);
  if (manifest_.packed()) {
    constexpr std::size_t kTried = 8;
    const pack::Index index = pack::Index::load(copy / pack::kIndexName);
    const std::size_t last = index.shards() > 0 ? index.shards() - 1 : 0;
    const std::size_t tried = std::min(kTried, index.shards());
    for (std::size_t i = 0; i < tried; ++i)
      names.emplace_back(index.shard_name(tried > 1 ? i * last / (tried - 1) : 0));
  }
  const fs::path& folder = manifest_.packed() ? context_.source.folder : manifest_.folder;
  parallel_for(names.size(), PutContext::kMaxSourceThreads,
               [&](std::size_t f) { try_to_open(context_, folder / names[f]); });
}

bool SourceLookup::check_shared() {
  try {
    check_copy(shared_->files(manifest_.object), context_.options.verify, context_.threads());
  } catch (const Error& damage) {
    context_.tally.note(fmt::format("the shared copy is damaged, tell the admin ({})", damage.what()));
    return false;
  }
  if (context_.options.lease.empty()) return true;
  try {
    shared_->add_lease(manifest_.object, context_.options.lease);
    return true;
  } catch (const Error& error) {
    // The store is on another file system than the user's, or the lease cannot be made there: makes a separate copy.
    context_.tally.note(
        fmt::format("the shared copy is not used, since it could be removed meanwhile: {}", error.what()));
    return false;
  }
}

std::optional<FoundCopy> SourceLookup::find_shared() {
  if (context_.options.shared.empty() || shared_damaged_) return {};
  try {
    shared_ = cache::Shared::open(context_.options.shared, context_.system);
  } catch (const Error& untrusted) {
    // The admin must repair that; the job need not stop.
    context_.tally.note(untrusted.what());
  }
  if (!shared_) return {};
  std::optional<cache::ObjectLock> lock = shared_->find(manifest_.object);
  if (!lock || !check_shared()) return {};
  check_readable_files(shared_->files(manifest_.object));
  return found(std::move(*lock), true);
}

std::vector<ManifestFile> SourceLookup::files_of(const FoundCopy& copy) const {
  if (manifest_.packed()) return shards_of(pack::Index::load(copy.files / pack::kIndexName));
  return transfer::files_of(info(copy.shared, false));
}

std::string SourceLookup::content_of(const FoundCopy& copy) const {
  if (manifest_.packed()) return "";
  std::string text;
  for (const cache::ObjectFile& file : info(copy.shared, false).files) text += file.xxh3;
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

}  // namespace lockstep::transfer
