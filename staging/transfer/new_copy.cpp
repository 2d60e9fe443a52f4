#include "staging/transfer/new_copy.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <span>

#include "common/error.h"
#include "common/files.h"
#include "common/pending_calls.h"
#include "staging/pack/formats/side_index.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

// Adds the source's name to the cache's message about missing space.
void with_source_in_error(const PutContext& context, const char* part, const std::function<void()>& work) {
  try {
    work();
  } catch (const cache::NoSpace& error) {
    throw cache::NoSpace(fmt::format("{}{} {}", context.source.name, part, error.what()));
  }
}

BegunCopy begin(const PutContext& context, const Manifest& manifest, CopyLock lock,
                std::uint64_t list_bytes) {
  BegunCopy begun{.manifest = manifest, .lock = std::move(lock), .incoming = {}};
  with_source_in_error(context, manifest.packed() ? " (for its index alone)" : "", [&] {
    const std::string& name = begun.lock.incoming.empty() ? manifest.object : begun.lock.incoming;
    begun.incoming.reset(new cache::Incoming(context.store.begin(name, list_bytes)));
  });
  return begun;
}

fs::path index_in(const BegunCopy& begun) {
  return begun.incoming->files() / pack::kIndexName;
}

// While only some shards of a pack are copied, its whole index lies beside the object's files.
fs::path whole_index(const BegunCopy& begun) {
  return begun.incoming->files().parent_path() / "index";
}

void write_index(const PutContext& context, const BegunCopy& begun, const std::string& content) {
  context.system.unlink_if_there(index_in(begun));
  context.system.write_file(index_in(begun), content, 0600);
}

std::vector<std::size_t> named_shards(const pack::Index& index, const Source& source) {
  std::vector<std::size_t> shards;
  for (const std::string& name : source.shards) {
    const std::size_t s = index.find_shard(name);
    if (s == index.shards()) {
      fail("not packed: {} is not a shard of {}", (source.folder / name).string(), index.file().string());
    }
    shards.push_back(s);
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

std::uint64_t all_holes(const std::vector<ManifestFile>& files) {
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : files) bytes += file.holes;
  return bytes;
}

mode_t mode_of(const ManifestFile& file) {
  return file.executable ? 0555 : 0444;
}

// Of the list of files: a journal of another list is not used.
pack::Digest digest_of(const std::vector<ManifestFile>& files) {
  std::string text;
  for (const ManifestFile& file : files) {
    text += fmt::format("{}\n{}\n{}\n", file.name, file.size, file.digest ? pack::to_hex(*file.digest) : "");
  }
  return pack::digest_of(std::as_bytes(std::span(text)));
}

/// Copies `size` bytes of an open file of the source into the new file `to`, and syncs that. Returns the bytes copied: fewer if
/// the file is shorter.
std::uint64_t copy_file(FileSystem& system, Limit& limit, int from_fd, const std::filesystem::path& from,
                        const std::filesystem::path& to, std::uint64_t size) {
  constexpr std::uint64_t kBuffer = std::uint64_t{1} << 20U;
  const UniqueFd target = system.open(to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  std::vector<std::byte> buffer(std::min(size, kBuffer));
  std::uint64_t done = 0;
  while (done < size) {
    const auto want = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    limit.take(want.size());
    const std::size_t got = system.read_at(from_fd, want, done, from);
    if (got == 0) break;
    system.write_at(target.get(), want.first(got), done, to);
    done += got;
  }
  system.sync(target.get(), to);
  return done;
}

// Copies the index before using it: if the source's index were truncated while it is mapped, the process
// would get SIGBUS.
void fetch_index(const PutContext& context, const BegunCopy& begun) {
  const Source& source = context.source;
  const fs::path file = source.shards.empty() ? index_in(begun) : whole_index(begun);
  const std::uint64_t size = begun.manifest.index.file.size;
  const std::uint64_t copied = retry_source(context.options.source_pause, [&] {
    context.system.unlink_if_there(file);
    const UniqueFd from = context.system.open(source.index_file(), O_RDONLY);
    return copy_file(context.system, context.limit, from.get(), source.index_file(), file, size);
  });
  context.tally.count(&PutResult::from_source, copied);
  if (copied != size) fail_changed(source.index_file());
  const pack::Index index = pack::Index::load(file, source.index_file());
  if (index.digest() != begun.manifest.index.digest) fail_changed(source.index_file());
  // The object's index has only the shards that were named.
  if (!source.shards.empty()) write_index(context, begun, index.subset(named_shards(index, source)));
}

}  // namespace

/// Copies the indexes that readers of some formats keep beside the data (staging/pack/formats/side_index.h). They may be made at
/// any time, also while the data is copied, so they are not among the files that nodes agree on and exchange: each node reads
/// them from the source, 40 to 50 bytes for each record. A bad one is left out; the first open then scans the whole file.
class SideIndexes {
 public:
  /// Finds the indexes of formats that have any. The references must outlive this object.
  SideIndexes(FileSystem& system, Limit& limit, const Manifest& manifest,
              const std::vector<ManifestFile>& files)
      : system_(system), limit_(limit), manifest_(manifest), files_(files) {
    if (!pack::has_side_index(manifest.format)) return;
    sizes_.resize(files.size());
    parallel_for(files.size(), kManyAtOnce, [&](std::size_t f) {
      const PendingCall call(at_source(f));
      struct stat status {};
      if (::stat(at_source(f).c_str(), &status) == 0 && S_ISREG(status.st_mode))
        sizes_[f] = static_cast<std::uint64_t>(status.st_size);
    });
  }

  /// The size of all indexes. No more is copied, even if one has grown since.
  std::uint64_t bytes() const { return std::accumulate(sizes_.begin(), sizes_.end(), std::uint64_t{0}); }

  /// Gives a file's copy the modification time of the original, which its index refers to. Call it before the
  /// copy can be opened.
  bool keep_time(const ManifestFile& file, const fs::path& target) const {
    if (sizes_.empty() || !file.state) return false;
    return system_.set_modified(target / file.name, file.state->mtime_ns);
  }

  /// Copies the indexes to `target`, and gives the data there the times of the originals. Returns the bytes
  /// of the good indexes.
  std::uint64_t copy(const fs::path& target) {
    std::atomic<std::uint64_t> bytes = 0;
    parallel_for(sizes_.size(), kManyAtOnce, [&](std::size_t f) {
      const fs::path to = pack::side_index_of(target / files_[f].name);
      system_.remove_all(to);  // an earlier copy's
      if (!keep_time(files_[f], target) || sizes_[f] == 0) return;
      try {
        copy_one(f, to);
        bytes += sizes_[f];
      } catch (const Error& error) {
        system_.remove_all(to);
        const std::lock_guard lock(mutex_);
        if (left_out_++ == 0) why_ = error.what();
      }
    });
    return bytes;
  }

  std::uint64_t bytes_from_source() const { return read_; }

  /// One line about the indexes that were left out, or "".
  std::string left_out() const {
    if (left_out_ == 0) return "";
    return fmt::format("{} beside the data {} not copied ({}); such files are read through when first opened",
                       left_out_ == 1 ? "1 index" : fmt::format("{} indexes", left_out_),
                       left_out_ == 1 ? "was" : "were", why_);
  }

 private:
  fs::path at_source(std::size_t file) const {
    return pack::side_index_of(manifest_.folder / files_[file].name);
  }

  void copy_one(std::size_t file, const fs::path& to) {
    const fs::path from = at_source(file);
    const std::uint64_t size = sizes_[file];
    const UniqueFd source = [&] {
      const PendingCall call(from);
      UniqueFd fd = system_.open(from, O_RDONLY | O_NONBLOCK | O_NOCTTY);
      if (FileState::of(fd.get(), from).size != size) fail("{}: it has changed", from.string());
      return fd;
    }();
    const std::uint64_t copied = copy_file(system_, limit_, source.get(), from, to, size);
    read_ += copied;
    if (copied != size) fail("{}: it has changed", from.string());
    if (!pack::is_side_index_for(to, files_[file].size)) fail("{}: damaged, or of other data", from.string());
  }

  FileSystem& system_;
  Limit& limit_;
  const Manifest& manifest_;
  const std::vector<ManifestFile>& files_;
  std::vector<std::uint64_t> sizes_;  // by file; 0: no index
  std::atomic<std::uint64_t> read_ = 0;
  std::mutex mutex_;
  std::size_t left_out_ = 0;
  std::string why_;  // of one of them
};

void rescan_source(const PutContext& context, Manifest& manifest) {
  Manifest seen = retry_source(context.options.source_pause, [&] { return look_at(context.source); });
  refuse_own_cache(context, seen);
  if (!manifest.seen_state.empty() && state_digest(seen) != manifest.seen_state)
    fail_changed(context.source.name, "node " + manifest.seen_by);
  seen.object = manifest.object;
  manifest = std::move(seen);
}

BegunCopy begin_copy(const PutContext& context, const Manifest& manifest, CopyLock lock) {
  const bool packed = manifest.packed();
  BegunCopy begun = begin(context, manifest, std::move(lock), packed ? manifest.index.file.size : 0);
  if (packed) {
    fetch_index(context, begun);
  } else if (manifest.files.empty()) {
    rescan_source(context, begun.manifest);
  }
  return begun;
}

BegunCopy begin_copy_with_list(const PutContext& context, const Manifest& manifest, CopyLock lock,
                               const std::string& list) {
  const bool packed = manifest.packed();
  BegunCopy begun = begin(context, manifest, std::move(lock), packed ? list.size() : 0);
  if (packed) {
    write_index(context, begun, list);
    const pack::Index index = pack::Index::load(index_in(begun), context.source.index_file());
    // An object of some shards has a part of the index.
    if (context.source.shards.empty() && index.digest() != manifest.index.digest)
      fail_changed(context.source.index_file());
  } else {
    list_from_text(list, begun.manifest);
  }
  return begun;
}

std::string list_text(const Manifest& manifest, const fs::path& files) {
  return manifest.packed() ? read_text_file(files / pack::kIndexName) : list_to_text(manifest);
}

NewCopy::NewCopy(const PutContext& context, BegunCopy begun, bool check_source)
    : context_(context),
      begun_(std::move(begun)),
      files_(list_files()),
      side_indexes_(std::make_unique<SideIndexes>(context_.system, context_.limit, begun_.manifest, files_)),
      plan_(sizes_of(files_), context_.options.sizes.chunk_bytes),
      source_(context_.system, begun_.manifest.folder, files_, plan_, context_.limit,
              context_.options.source_pause),
      local_(context_.system, begun_.incoming->files(), files_, plan_) {
  if (check_source && begun_.manifest.packed()) check_shards_at_source();
  progress_.total = list_bytes_ + plan_.total_bytes();
  const std::uint64_t stored = progress_.total - all_holes(files_);
  with_source_in_error(context_, "", [&] { begun_.incoming->reserve(stored + side_indexes_->bytes()); });
  report_names();
  progressed(list_bytes_);
  ChunkStore::Options options;
  options.journal = begun_.incoming->files().parent_path() / kJournalName;
  options.plan = digest_of(files_);
  options.mark_bytes = context_.options.sizes.mark_bytes;
  options.complete = [this](std::size_t file, const pack::Digest& digest) { return check(file, digest); };
  store_ = std::make_unique<ChunkStore>(context_.system, local_, plan_, context_.resources.memory,
                                        std::move(options));
  local_.make_folders();
  const std::uint64_t resumed = store_->resume(threads());
  if (resumed > 0) progressed(resumed);
  context_.tally.count(&PutResult::resumed, resumed);
}

NewCopy::~NewCopy() {
  if (source_.failed()) keep();
}

void NewCopy::keep() noexcept {
  try {
    store_->mark();
    begun_.incoming->keep();
  } catch (const std::exception&) {
    // The copy is discarded. The error that led here is the one to report.
  }
}

std::vector<ManifestFile> NewCopy::list_files() {
  if (!begun_.manifest.packed()) return begun_.manifest.files;
  const pack::Index index = pack::Index::load(index_in(begun_), context_.source.index_file());
  list_bytes_ = index.file_bytes();
  return shards_of(index);
}

void NewCopy::check_shards_at_source() const {
  const fs::path& folder = context_.source.folder;
  const pack::Index index = pack::Index::load(index_in(begun_), context_.source.index_file());
  parallel_for(index.shards(), kManyAtOnce, [&](std::size_t s) {
    retry_source(context_.options.source_pause, [&] {
      const PendingCall call(folder);
      pack::check_shard_size(folder, index, s);
    });
  });
}

void NewCopy::report_names() {
  const PutEvents& on = context_.options.on;
  const bool packed = begun_.manifest.packed();
  if (on.listed) {
    std::vector<std::string> names = names_of(files_);
    if (packed) names.emplace_back(pack::kIndexName);
    on.listed(context_.source, names);
  }
  if (on.file && packed) hand_out(std::string(pack::kIndexName), 0444);
}

// With small files, each thread mostly waits for the source.
int NewCopy::threads() const {
  constexpr int kThreads = 4;
  constexpr std::uint64_t kSmall = 1U << 18U;
  if (context_.options.threads > 0) return std::min(context_.options.threads, kManyAtOnce);
  const bool small = plan_.files() > 16 && plan_.total_bytes() / plan_.files() < kSmall;
  return small ? kManyAtOnce : kThreads;
}

void NewCopy::run() {
  parallel_for(plan_.size(), threads(), [&](std::size_t chunk) {
    if (!store_->has(chunk)) take(chunk, load(chunk), false);
  });
  finish();
}

LoadedChunk NewCopy::load(std::size_t chunk) {
  LentChunk data = context_.resources.memory.chunks.take(plan_.bytes(chunk));
  source_.read(chunk, data.bytes());
  const pack::Digest digest = pack::digest_of(data.bytes());
  return {std::move(data), digest};
}

void NewCopy::take(std::size_t chunk, LoadedChunk loaded, bool waiting) {
  store_->put(chunk, std::move(loaded.data), loaded.digest, waiting);
  progressed(plan_.bytes(chunk));
}

void NewCopy::finish(const std::function<void(std::size_t chunk)>& wrong) {
  store_->finish();
  source_.check_unchanged(false);
  if (store_->damaged().empty()) return;
  for (const std::size_t file : store_->damaged()) repair(file, wrong);
  store_->mark();
}

// The wrong bytes may have come from another node, from the disk, from an earlier copy of a source that was
// repaired since, or from the source itself.
void NewCopy::repair(std::size_t file, const std::function<void(std::size_t chunk)>& wrong) {
  pack::Hasher hasher;
  for (std::size_t chunk = plan_.first_chunk(file); chunk <= plan_.last_chunk(file); ++chunk) {
    const LentChunk data = context_.resources.memory.chunks.take(plan_.bytes(chunk));
    source_.read(chunk, data.bytes());
    const pack::Digest digest = pack::digest_of(data.bytes());
    if (digest != store_->digest(chunk) && wrong) wrong(chunk);
    store_->replace(chunk, data, digest);
    std::size_t at = 0;
    for (const Extent& extent : plan_.extents(chunk)) {
      if (extent.file == file) hasher.update(data.bytes().subspan(at, extent.bytes));
      at += extent.bytes;
    }
  }
  const pack::Digest now = hasher.digest();
  if (now != *files_[file].digest) {
    fail(
        "{} does not match its index (xxh3 {}, {} expected): damaged, or changed after it was packed; run lockstep-pack verify, then pack again",
        (begun_.manifest.folder / files_[file].name).string(), pack::to_hex(now),
        pack::to_hex(*files_[file].digest));
  }
  complete(files_[file]);
}

bool NewCopy::check(std::size_t file, const pack::Digest& digest) {
  if (files_[file].digest && *files_[file].digest != digest) return false;
  complete(files_[file]);
  return true;
}

// In the background, tasks read the file from now on.
void NewCopy::complete(const ManifestFile& file) {
  if (!context_.options.on.file) return;
  if (file.digest) {
    hand_out(file.name, mode_of(file));
  } else {
    complete_unindexed(file);
  }
}

void NewCopy::hand_out(const std::string& name, mode_t mode) {
  const fs::path copy = begun_.incoming->files() / name;
  context_.system.change_mode(copy, mode);
  context_.options.on.file(context_.source.name, name, copy);
}

// No index describes such a file, so the source must not have changed since it was first read. If nodes share the work,
// no file is handed out before their copies have been compared at the end.
void NewCopy::complete_unindexed(const ManifestFile& file) {
  if (context_.options.peers != nullptr || !file.state) return;
  const fs::path path = begun_.manifest.folder / file.name;
  struct stat status {};
  {
    const PendingCall call(path);
    if (::stat(path.c_str(), &status) != 0) return;  // publish() reports it
  }
  if (!(FileState::of(status) == *file.state)) return;
  side_indexes_->keep_time(file, begun_.incoming->files());
  hand_out(file.name, mode_of(file));
}

void NewCopy::progressed(std::uint64_t bytes) {
  const std::lock_guard lock(context_.resources.reporting);
  const PutEvents& on = context_.options.on;
  progress_.done += bytes;
  if (!on.progress) return;
  const PutResult so_far = context_.tally.result();
  progress_.from_source = so_far.from_source + source_.bytes_read();
  progress_.from_peers = so_far.from_peers;
  on.progress(context_.source.name, progress_);
}

std::string NewCopy::content() const {
  if (begun_.manifest.packed()) return "";
  std::string text;
  for (std::size_t f = 0; f < files_.size(); ++f) text += pack::to_hex(store_->file_digest(f));
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

FoundCopy NewCopy::publish() {
  const Manifest& manifest = begun_.manifest;
  retry_source(context_.options.source_pause, [&] { check_unchanged(manifest); });
  const std::uint64_t bytes =
      progress_.total - all_holes(files_) + side_indexes_->copy(begun_.incoming->files());
  for (const ManifestFile& file : files_) {
    if (file.executable) context_.system.change_mode(begun_.incoming->files() / file.name, mode_of(file));
  }
  if (const std::string left_out = side_indexes_->left_out(); !left_out.empty())
    context_.tally.note(left_out);
  context_.tally.count(&PutResult::from_source, source_.bytes_read() + side_indexes_->bytes_from_source());
  cache::ObjectInfo info{.name = manifest.object,
                         .source = manifest.in(manifest.folder).string(),
                         .bytes = bytes,
                         .format = std::string(pack::name_of(manifest.format))};
  if (!manifest.packed()) {
    for (std::size_t f = 0; f < files_.size(); ++f)
      info.files.push_back({files_[f].name, files_[f].size, pack::to_hex(store_->file_digest(f))});
  }
  cache::Store& store = context_.store;
  context_.system.unlink_if_there(whole_index(begun_));
  begun_.incoming->publish(info, manifest.object);
  if (!context_.options.lease.empty()) store.add_lease(manifest.object, context_.options.lease);
  store.touch(manifest.object);
  const fs::path files = store.files(manifest.object);
  begun_.lock.heartbeat = {};  // the lock may end before this object
  return {{.path = manifest.in(files),
           .object = manifest.object,
           .bytes = bytes,
           .version = source_version(manifest)},
          files,
          std::move(begun_.lock.lock)};
}

FoundCopy find_or_copy(const PutContext& context, SourceLookup& lookup) {
  SourceLookup::Result result = lookup.find_or_lock(true);
  if (FoundCopy* const found = std::get_if<FoundCopy>(&result)) return std::move(*found);
  NewCopy copy(context, begin_copy(context, lookup.manifest(), std::get<CopyLock>(std::move(result))), true);
  copy.run();
  return copy.publish();
}

}  // namespace lockstep::transfer
