#include "staging/transfer/check.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <random>

#include "common/error.h"
#include "common/file_system.h"
#include "staging/cache/object.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/shard_check.h"
#include "staging/transfer/copy/object_chunks.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

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

}  // namespace lockstep::transfer
