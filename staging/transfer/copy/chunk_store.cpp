#include "staging/transfer/copy/chunk_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/error.h"
#include "common/thread.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {

namespace {

constexpr std::uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic{'L', 'O', 'C', 'K', 'J', 'R', 'N', 'L'};
  std::uint32_t version = kVersion;
  std::uint32_t chunk_bytes = 0;
  pack::Digest plan{};
};
static_assert(sizeof(Header) == 32);

struct Record {
  std::uint64_t chunk = 0;
  pack::Digest digest{};
  std::uint64_t check = 0;
};
static_assert(sizeof(Record) == 32);

std::uint64_t check_of(const Record& record) {
  return pack::xxh3_64(std::as_bytes(std::span(&record, 1)).first(offsetof(Record, check)));
}

// Records from the header to the end, or to one that is damaged.
std::vector<DoneChunk> read_records(FileSystem& system, int fd, const std::filesystem::path& file) {
  std::vector<DoneChunk> found;
  std::vector<Record> records(4096);
  for (std::uint64_t at = sizeof(Header);;) {
    const std::size_t got =
        system.read_at(fd, std::as_writable_bytes(std::span(records)), at, file) / sizeof(Record);
    for (std::size_t i = 0; i < got; ++i) {
      if (records[i].check != check_of(records[i])) return found;
      found.push_back({records[i].chunk, records[i].digest});
    }
    at += got * sizeof(Record);
    if (got < records.size()) return found;
  }
}

bool read_header(FileSystem& system, int fd, const std::filesystem::path& file, Header& header) {
  const auto bytes = std::as_writable_bytes(std::span(&header, 1));
  return system.read_at(fd, bytes, 0, file) == sizeof header && header.magic == Header().magic &&
         header.version == kVersion;
}

}  // namespace

ChunkJournal::Content ChunkJournal::read(FileSystem& system, const std::filesystem::path& file) {
  const std::optional<UniqueFd> fd = system.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  Header header;
  if (!fd || !read_header(system, fd->get(), file, header)) return {};
  return {header.chunk_bytes, header.plan, read_records(system, fd->get(), file)};
}

ChunkJournal::ChunkJournal(FileSystem& system, std::filesystem::path file, const pack::Digest& plan,
                           std::uint32_t chunk_bytes)
    : system_(system), file_(std::move(file)), fd_(system.open(file_, O_RDWR | O_CREAT | O_NOFOLLOW, 0644)) {
  Header header;
  if (read_header(system_, fd_.get(), file_, header) && header.chunk_bytes == chunk_bytes &&
      header.plan == plan) {
    found_ = read_records(system_, fd_.get(), file_);
  } else {
    header = Header();
    header.chunk_bytes = chunk_bytes;
    header.plan = plan;
    fd_.reset();
    system_.unlink(file_);
    fd_ = system_.open(file_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    system_.write_at(fd_.get(), std::as_bytes(std::span(&header, 1)), 0, file_);
  }
  end_ = sizeof header + found_.size() * sizeof(Record);
}

void ChunkJournal::add(const std::vector<DoneChunk>& chunks) {
  if (chunks.empty()) return;
  std::vector<Record> records(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    records[i].chunk = chunks[i].chunk;
    records[i].digest = chunks[i].digest;
    records[i].check = check_of(records[i]);
  }
  const auto bytes = std::as_bytes(std::span(records));
  system_.write_at(fd_.get(), bytes, end_, file_);
  system_.sync(fd_.get(), file_);
  end_ += bytes.size();
}

ObjectChunks::ObjectChunks(FileSystem& system, const std::filesystem::path& folder,
                           const std::vector<ManifestFile>& files, const ChunkJournal::Content& journal,
                           std::uint32_t chunk_bytes)
    : plan_(sizes_of(files), chunk_bytes), files_(system, folder, files, plan_), digests_(plan_.size()) {
  std::vector<bool> known(plan_.size());
  for (const DoneChunk& done : journal.chunks) {
    if (done.chunk >= plan_.size()) continue;
    digests_[done.chunk] = done.digest;
    known[done.chunk] = true;
  }
  has_digests_ =
      journal.chunk_bytes == chunk_bytes && std::find(known.begin(), known.end(), false) == known.end();
}

ChunkStore::ChunkStore(FileSystem& system, LocalFiles& local, const ChunkPlan& plan, CopyMemory& memory,
                       Options options)
    : system_(system),
      local_(local),
      plan_(plan),
      memory_(memory),
      options_(std::move(options)),
      journal_(system_, options_.journal, options_.plan, plan.chunk_bytes()),
      present_(plan.size()),
      digests_(plan.size()),
      hashed_(plan.size()),
      file_digests_(plan.files()) {
}

std::uint64_t ChunkStore::resume(int threads) {
  const std::vector<DoneChunk>& found = journal_.found();
  std::atomic<std::uint64_t> bytes = 0;
  parallel_for(found.size(), threads, [&](std::size_t i) {
    const DoneChunk& done = found[i];
    if (done.chunk >= plan_.size()) return;
    const LentChunk data = memory_.chunks.take(plan_.bytes(done.chunk));
    if (!local_.read(done.chunk, data.bytes()) || pack::digest_of(data.bytes()) != done.digest) return;
    const std::lock_guard lock(mutex_);
    if (!present_[done.chunk]) bytes += data.bytes().size();
    present_[done.chunk] = true;
    digests_[done.chunk] = done.digest;
  });
  return bytes;
}

bool ChunkStore::has(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  return present_[chunk];
}

pack::Digest ChunkStore::digest(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  return digests_[chunk];
}

void ChunkStore::put(std::size_t chunk, LentChunk data, const pack::Digest& digest, bool in_background) {
  local_.write(chunk, data);
  written(chunk, digest, in_background);
  Hashing* hashing = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (hashed_[chunk]) return;  // the hashing thread has read it back already
    hashing = &hashing_of(chunk);
    if (hashing->busy || chunk != hashing->next) keep_early(chunk, std::exchange(data, {}));
    if (hashing->busy || !present_[hashing->next])
      return;  // the thread that hashes, or puts that chunk, takes it
    hashing->busy = true;
    if (!data) data = take_early(hashing->next);
  }
  hash_from(*hashing, std::move(data));
}

ChunkStore::~ChunkStore() {
  join_marker();
  memory_.early += static_cast<int>(early_.size());
}

// Only few of the chunks that wait stay in memory: the first ones. The others are read back. The caller holds the mutex.
void ChunkStore::keep_early(std::size_t chunk, LentChunk data) {
  early_.emplace(chunk, std::move(data));
  if (memory_.early.fetch_sub(1) > 0) return;
  ++memory_.early;
  early_.erase(std::prev(early_.end()));
}

// Empty if the chunk must be read back. The caller holds the mutex.
LentChunk ChunkStore::take_early(std::size_t chunk) {
  auto node = early_.extract(chunk);
  if (node.empty()) return {};
  ++memory_.early;
  return std::move(node.mapped());
}

// The caller holds the mutex.
ChunkStore::Hashing& ChunkStore::hashing_of(std::size_t chunk) {
  const std::uint32_t file = first_file(chunk);
  const auto [at, fresh] = hashing_.try_emplace(file);
  if (fresh) at->second.next = plan_.first_chunk(file);
  return at->second;
}

void ChunkStore::written(std::size_t chunk, const pack::Digest& digest, bool in_background) {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    if (mark_failed_) std::rethrow_exception(mark_failed_);
    present_[chunk] = true;
    digests_[chunk] = digest;
    unmarked_.push_back({chunk, digest});
    for (const Extent& extent : plan_.extents(chunk)) unsynced_.insert(extent.file);
    unmarked_bytes_ += plan_.bytes(chunk);
    due = !marking_ && unmarked_bytes_ >= options_.mark_bytes;
    marking_ = marking_ || due;
  }
  if (due && in_background) {
    journal_in_background();
  } else if (due) {
    record();
  }
}

void ChunkStore::journal_in_background() {
  const std::lock_guard one(marker_mutex_);
  if (marker_.joinable()) marker_.join();  // it has finished, otherwise no mark would be due
  marker_ = new_thread([this] {
    try {
      record();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      mark_failed_ = std::current_exception();
    }
  });
}

void ChunkStore::join_marker() {
  const std::lock_guard one(marker_mutex_);
  if (marker_.joinable()) marker_.join();
}

void ChunkStore::mark() {
  join_marker();
  record();
}

void ChunkStore::record() {
  std::vector<DoneChunk> chunks;
  std::vector<std::uint32_t> files;
  {
    const std::lock_guard lock(mutex_);
    chunks.swap(unmarked_);
    files.assign(unsynced_.begin(), unsynced_.end());
    unsynced_.clear();
    unmarked_bytes_ = 0;
  }
  local_.sync(files);
  journal_.add(chunks);
  const std::lock_guard lock(mutex_);
  marking_ = false;
}

// Hashes the chunk whose turn it is and the ones after it, up to the first that is missing or the end of the file. `data` is
// that chunk, or empty if it must be read back. The caller has set `hashing.busy`.
void ChunkStore::hash_from(Hashing& hashing, LentChunk data) {
  const std::uint32_t file = first_file(hashing.next);
  for (;;) {
    const std::size_t chunk = hashing.next;
    if (!data) {
      data = memory_.read_back.take(plan_.bytes(chunk));
      if (!local_.read(chunk, data.bytes()))
        fail("{}: vanished while it was copied", local_.path(file).string());
    }
    hash_chunk(hashing.hasher, chunk, data.bytes());
    data = {};
    const std::lock_guard lock(mutex_);
    hashed_[chunk] = true;
    take_early(chunk);
    if (chunk == plan_.last_chunk(file)) {
      hashing_.erase(file);
      return;
    }
    hashing.next = chunk + 1;
    hashing.busy = present_[chunk + 1];
    if (!hashing.busy) return;
    data = take_early(chunk + 1);
  }
}

void ChunkStore::hash_chunk(pack::Hasher& hasher, std::size_t chunk, std::span<const std::byte> data) {
  std::size_t at = 0;
  for (const Extent& extent : plan_.extents(chunk)) {
    if (extent.offset == 0) hasher.reset();
    hasher.update(data.subspan(at, extent.bytes));
    at += extent.bytes;
    if (extent.offset + extent.bytes != plan_.file_bytes(extent.file)) continue;
    const std::lock_guard one(complete_mutex_);
    file_digests_[extent.file] = hasher.digest();
    if (options_.complete && !options_.complete(extent.file, file_digests_[extent.file])) {
      damaged_.push_back(extent.file);
    }
  }
}

void ChunkStore::finish() {
  for (std::size_t chunk = 0; chunk < plan_.size(); ++chunk) {
    Hashing* hashing = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (hashed_[chunk]) continue;
      hashing = &hashing_of(chunk);
      hashing->busy = true;
    }
    hash_from(*hashing, {});
  }
  join_marker();
  if (mark_failed_) std::rethrow_exception(mark_failed_);
  record();
}

void ChunkStore::replace(std::size_t chunk, const LentChunk& data, const pack::Digest& digest) {
  local_.write(chunk, data);
  written(chunk, digest, false);
}

pack::Digest ChunkStore::read_digest(std::size_t chunk) {
  const LentChunk data = memory_.chunks.take(plan_.bytes(chunk));
  return local_.read(chunk, data.bytes()) ? pack::digest_of(data.bytes()) : pack::Digest{};
}

}  // namespace lockstep::transfer
