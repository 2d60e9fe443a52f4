#include "staging/transfer/source_lookup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>

#include "common/error.h"
#include "common/file_system.h"
#include "common/pending_calls.h"
#include "staging/cache/object.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/shard_check.h"
#include "staging/transfer/copy/chunk_store.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr int kSamples = 16;
constexpr int kPieces = 4;  // of large files
constexpr std::uint32_t kLargestChunk = std::uint32_t{64} << 20U;
constexpr std::uint64_t kLargestSample = std::uint64_t{1} << 20;

/// Checks a few samples, different ones each time, which finds a damaged disk soon with little work.
void check_some_samples(const std::filesystem::path& folder, const pack::Index& index) {
  std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<std::size_t> any(0, index.samples() - 1);
  for (int n = 0; n < kSamples; ++n) {
    const std::size_t sample = any(random);
    const std::size_t p = index.first_part(sample);
    if (index.part(p).size > kLargestSample) continue;
    const std::filesystem::path shard = folder / index.shard_name(index.part(p).shard);
    pack::check_part(open_file(shard, O_RDONLY).get(), shard, index, sample, p);
  }
}

std::uint64_t size_of(const std::filesystem::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0) fail_errno("{}", file.string());
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", file.string());
  return static_cast<std::uint64_t>(status.st_size);
}

void check_digest(const std::filesystem::path& folder, const cache::ObjectFile& file) {
  const std::filesystem::path path = folder / file.name;
  const UniqueFd fd = open_file(path, O_RDONLY | O_NOFOLLOW);
  pack::Hasher hasher;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(file.size + 1, kLargestSample));
  for (std::uint64_t done = 0;;) {
    const std::size_t got = FileSystem::real().read_at(fd.get(), buffer, done, path);
    if (got == 0) break;
    hasher.update(std::span(buffer).first(got));
    done += got;
  }
  const std::string now = pack::to_hex(hasher.digest());
  if (now != file.xxh3) fail("{} is damaged: xxh3 {}, {} expected", path.string(), now, file.xxh3);
}

// Checks a chunk of large files. Throws Error if one of them is damaged; otherwise the journal's digest is wrong.
void check_chunk(ObjectChunks& chunks, std::size_t chunk, const std::filesystem::path& folder,
                 const std::vector<cache::ObjectFile>& files) {
  std::vector<std::byte> bytes(chunks.plan().bytes(chunk));
  if (chunks.read(chunk, bytes) && pack::digest_of(bytes) == chunks.digest(chunk)) return;
  for (const Extent& extent : chunks.plan().extents(chunk)) {
    try {
      check_digest(folder, files[extent.file]);
    } catch (const Error& damage) {
      fail("{}, between bytes {} and {}", damage.what(), extent.offset, extent.offset + extent.bytes);
    }
  }
}

using Checked = std::function<void(std::uint64_t bytes)>;

// Checks files that have no index, only object.json.
void check_files(const std::filesystem::path& folder, Verify verify, int threads, const Checked& checked) {
  const std::filesystem::path about = folder.parent_path() / "object.json";
  const cache::ObjectInfo info =
      cache::parse_object(read_text_file(about), folder.parent_path().filename().string(), about.string());
  if (info.files.empty()) fail("{} lists no files", about.string());
  parallel_for(info.files.size(), threads, [&](std::size_t f) {
    const cache::ObjectFile& file = info.files[f];
    const std::uint64_t size = size_of(folder / file.name);
    if (size != file.size) fail("{}: {} bytes, {} expected", (folder / file.name).string(), size, file.size);
    if (verify != Verify::full) return;
    check_digest(folder, file);
    if (checked) checked(size);
  });
  if (verify == Verify::full) return;
  std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<std::size_t> any(0, info.files.size() - 1);
  const std::vector<ManifestFile> list = files_of(info);
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : list) bytes += file.size;
  const auto journal = ChunkJournal::read(FileSystem::real(), folder.parent_path() / kJournalName);
  std::optional<ObjectChunks> chunks;
  // A damaged number must not make the plan larger than the list itself.
  if (journal.chunk_bytes > 0 && journal.chunk_bytes <= kLargestChunk &&
      bytes / journal.chunk_bytes <= journal.chunks.size())
    chunks.emplace(FileSystem::real(), folder, list, journal, journal.chunk_bytes);
  int read = 0;
  for (int n = 0; n < kSamples; ++n) {
    const std::size_t f = any(random);
    if (info.files[f].size <= kLargestSample) {
      check_digest(folder, info.files[f]);
    } else if (chunks && chunks->has_digests() && read++ < kPieces) {
      std::uniform_int_distribution<std::size_t> of_file(chunks->plan().first_chunk(f),
                                                         chunks->plan().last_chunk(f));
      check_chunk(*chunks, of_file(random), folder, info.files);
    }
  }
}

constexpr std::size_t kManyFiles = 10'000;  // packing pays at once

struct WouldWait {};

void try_to_open(const PutContext& context, const fs::path& path, bool may_be_pair = false) {
  retry_source(context.options.source_pause, [&] {
    const PendingCall call(path);
    const bool pair = may_be_pair && !context.system.status(path);  // of files, named by their common prefix
    if (::access(path.c_str(), R_OK) != 0 && !pair) fail_errno("cannot open {}", path.string());
  });
}

}  // namespace

void check_copy(const std::filesystem::path& folder, Verify verify, int threads, const Checked& checked) {
  if (verify == Verify::off) return;
  if (!FileSystem::real().status(folder / pack::kIndexName))
    return check_files(folder, verify, threads, checked);
  const pack::Index index = pack::Index::load(folder / pack::kIndexName);
  if (verify == Verify::quick) {
    for (std::size_t s = 0; s < index.shards(); ++s) pack::check_shard_size(folder, index, s);
    check_some_samples(folder, index);
    return;
  }
  parallel_for(index.shards(), threads, [&](std::size_t s) {
    pack::check_digests(folder, index, s, [](std::uint64_t) {});
    if (checked) checked(index.shard(s).size);
  });
}

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

Manifest adopt_identity(const PutContext& context, const std::string& node, const std::string& object,
                        bool packed, const std::string& version) {
  const Source& source = context.source;
  const std::optional<IndexState> index =
      retry_source(context.options.source_pause, [&] { return index_state(source); });
  if (packed != index.has_value() || (index && pack::to_hex(index->digest) != version))
    fail_changed(source.name, "node " + node);
  Manifest manifest;
  manifest.source = source;
  manifest.folder = source.folder;
  manifest.object = object;
  manifest.seen_by = node;
  manifest.seen_state = packed ? "" : version;
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
  try_to_open(context, source.shards.empty() ? source.folder : source.paths.front(), true);
}

cache::ObjectInfo SourceLookup::info(bool shared, bool brief) const {
  return shared ? shared_->info(manifest_.object, brief) : context_.store.info(manifest_.object, brief);
}

FoundCopy SourceLookup::found(cache::ObjectLock lock, bool shared) {
  const fs::path files = shared ? shared_->files(manifest_.object) : context_.store.files(manifest_.object);
  FoundCopy copy{{.path = manifest_.in(files),
                  .object = manifest_.object,
                  .bytes = info(shared, true).bytes,
                  .hit = true,
                  .shared = shared,
                  .version = source_version(manifest_)},
                 files,
                 std::move(lock)};
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
    CopyLock mine = beating(lock(FileSystem::LockKind::exclusive, wait));
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

CopyLock SourceLookup::beating(cache::ObjectLock lock, std::string incoming) const {
  Heartbeat::Beating heartbeat = context_.resources.heartbeat.touch(lock.fd());
  return {std::move(lock), std::move(heartbeat), std::move(incoming)};
}

CopyLock SourceLookup::lock_own_copy(const std::string& step) {
  const std::string name = manifest_.object + "." + step;
  return beating(
      context_.store.lock(name, FileSystem::LockKind::exclusive, {}, context_.options.copier_timeout), name);
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
  parallel_for(names.size(), kManyAtOnce,
               [&](std::size_t f) { try_to_open(context_, manifest_.folder / names[f]); });
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
