#include "staging/transfer/copy/chunk_store.h"

#include "common/error.h"
#include "common/thread.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {

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
    const ChunkBuffers::Buffer data = memory_.chunks.take(plan_.bytes(done.chunk));
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
  local_.write(chunk, *data);
  written(chunk, digest, in_background);
  Hashing* hashing = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (hashed_[chunk]) return;  // the hashing thread has read it back already
    hashing = &hashing_of(chunk);
    if (hashing->busy || chunk != hashing->next) {
      keep_early(chunk, std::move(data));  // the hashing thread will take it
      if (hashing->busy || !present_[hashing->next]) return;
      chunk = hashing->next;
      data = take_early(chunk);
    }
    hashing->busy = true;
  }
  hash_from(*hashing, chunk, std::move(data));
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
  if (node.empty()) return nullptr;
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

// Hashes this chunk and the ones after it, up to the first that is missing or the end of the file. The caller has set
// `hashing.busy`.
void ChunkStore::hash_from(Hashing& hashing, std::size_t chunk, LentChunk data) {
  const std::uint32_t file = first_file(chunk);
  for (;;) {
    if (data == nullptr) {
      ChunkBuffers::Buffer read = memory_.read_back.take(plan_.bytes(chunk));
      if (!local_.read(chunk, read.bytes()))
        fail("{}: vanished while it was copied", local_.path(file).string());
      data = std::make_shared<const ChunkBuffers::Buffer>(std::move(read));
    }
    hash_chunk(hashing.hasher, chunk, data->bytes());
    data.reset();
    const std::lock_guard lock(mutex_);
    hashed_[chunk] = true;
    take_early(chunk);
    hashing.next = ++chunk;
    if (chunk > plan_.last_chunk(file)) {
      hashing_.erase(file);
      return;
    }
    if (!present_[chunk]) {
      hashing.busy = false;
      return;
    }
    data = take_early(chunk);
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
    hash_from(*hashing, chunk, nullptr);
  }
  join_marker();
  if (mark_failed_) std::rethrow_exception(mark_failed_);
  record();
}

void ChunkStore::replace(std::size_t chunk, const ChunkBuffers::Buffer& data, const pack::Digest& digest) {
  local_.write(chunk, data);
  written(chunk, digest, false);
}

pack::Digest ChunkStore::read_digest(std::size_t chunk) {
  const ChunkBuffers::Buffer data = memory_.chunks.take(plan_.bytes(chunk));
  return local_.read(chunk, data.bytes()) ? pack::digest_of(data.bytes()) : pack::Digest{};
}

}  // namespace lockstep::transfer
