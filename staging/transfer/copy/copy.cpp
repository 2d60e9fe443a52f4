#include "staging/transfer/copy/copy.h"

#include <algorithm>

#include "common/error.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

constexpr int kThreads = 4;
constexpr int kMaxThreads = 32;

// With small files, each thread mostly waits for the source.
int threads_for(const ChunkPlan& plan) {
  constexpr std::uint64_t kSmall = 1U << 18U;
  return plan.files() > 16 && plan.total_bytes() / plan.files() < kSmall ? kMaxThreads : kThreads;
}

pack::Digest digest_of(const std::vector<ManifestFile>& files) {
  std::string text;
  for (const ManifestFile& file : files) {
    text += fmt::format("{}\n{}\n{}\n", file.name, file.size, file.digest ? pack::to_hex(*file.digest) : "");
  }
  return pack::digest_of(std::as_bytes(std::span(text)));
}

}  // namespace

std::vector<std::uint64_t> sizes_of(const std::vector<ManifestFile>& files) {
  std::vector<std::uint64_t> sizes(files.size());
  std::transform(files.begin(), files.end(), sizes.begin(),
                 [](const ManifestFile& file) { return file.size; });
  return sizes;
}

std::vector<std::string> names_of(const std::vector<ManifestFile>& files) {
  std::vector<std::string> names(files.size());
  std::transform(files.begin(), files.end(), names.begin(),
                 [](const ManifestFile& file) { return file.name; });
  return names;
}

Copy::Copy(FileSystem& system, const std::vector<ManifestFile>& files, Limit& limit, CopyOptions options)
    : files_(files),
      options_(std::move(options)),
      plan_(sizes_of(files), options_.chunk_bytes),
      threads_(options_.threads > 0 ? std::min(options_.threads, kMaxThreads) : threads_for(plan_)),
      own_memory_(options_.memory == nullptr
                      ? std::make_unique<CopyMemory>(options_.buffers, options_.chunk_bytes)
                      : nullptr),
      memory_(own_memory_ ? *own_memory_ : *options_.memory),
      source_(system, options_.source, files, plan_, limit, options_.source_pause),
      local_(system, options_.target, names_of(files), plan_),
      store_(
          system, local_, plan_, memory_,
          {.journal = options_.journal,
           .plan = digest_of(files),
           .mark_bytes = options_.mark_bytes,
           .complete = [this](std::size_t file, const pack::Digest& digest) { return check(file, digest); },
           .hashed = options_.hashed}) {
  local_.make_folders();
  resumed_ = store_.resume(threads_);
  if (options_.copied && resumed_ > 0) options_.copied(resumed_);
}

bool Copy::check(std::size_t file, const pack::Digest& digest) {
  if (files_[file].digest && *files_[file].digest != digest) return false;
  if (options_.complete) options_.complete(file);
  return true;
}

void Copy::read_from_source(std::size_t chunk) {
  ChunkBuffers::Buffer data = memory_.chunks.take(plan_.bytes(chunk));
  source_.read(chunk, data.bytes());
  const pack::Digest digest = pack::digest_of(data.bytes());
  take(chunk, std::move(data), digest, false);
}

void Copy::take(std::size_t chunk, ChunkBuffers::Buffer data, const pack::Digest& digest, bool waiting) {
  const std::uint64_t bytes = data.bytes().size();
  store_.put(chunk, std::move(data), digest, waiting);
  if (options_.copied) options_.copied(bytes);
}

void Copy::run() {
  parallel_for(plan_.size(), threads_, [&](std::size_t chunk, const std::function<bool()>&) {
    if (!store_.has(chunk)) read_from_source(chunk);
  });
  finish();
}

void Copy::finish(const std::function<void(std::size_t chunk)>& wrong) {
  store_.finish();
  source_.check_unchanged();
  for (const std::size_t file : store_.damaged()) repair(file, wrong);
}

// The wrong bytes may have come from another node, from the disk, from an earlier copy of a source that was
// repaired since, or from the source itself.
void Copy::repair(std::size_t file, const std::function<void(std::size_t chunk)>& wrong) {
  for (std::size_t chunk = plan_.first_chunk(file); chunk <= plan_.last_chunk(file); ++chunk) {
    const ChunkBuffers::Buffer data = memory_.chunks.take(plan_.bytes(chunk));
    source_.read(chunk, data.bytes());
    const pack::Digest digest = pack::digest_of(data.bytes());
    const bool differs = digest != store_.digest(chunk);
    if (differs && wrong) wrong(chunk);
    if (differs || store_.read_digest(chunk) != digest) store_.replace(chunk, data, digest);
  }
  const pack::Digest now = store_.rehash(file);
  if (now != *files_[file].digest) damaged(file, now);
  store_.sync_file(file);
  if (options_.complete) options_.complete(file);
}

void Copy::damaged(std::size_t file, const pack::Digest& digest) const {
  fail(
      "{} does not match its index (xxh3 {}, {} expected): damaged, or changed after it was packed; run lockstep-pack verify, then pack again",
      (options_.source / files_[file].name).string(), pack::to_hex(digest),
      pack::to_hex(*files_[file].digest));
}

}  // namespace lockstep::transfer
