#include "staging/transfer/exchange/chunk_provider.h"

#include "common/thread.h"

namespace lockstep::transfer {
namespace {

std::vector<std::optional<pack::Digest>> digests_of(const std::vector<ManifestFile>& files) {
  std::vector<std::optional<pack::Digest>> digests;
  for (const ManifestFile& file : files) digests.push_back(file.digest);
  return digests;
}

struct Stopped {};

}  // namespace

ObjectChunks::ObjectChunks(const std::filesystem::path& folder, const std::vector<ManifestFile>& files,
                           std::uint32_t chunk_bytes)
    : plan_(sizes_of(files), chunk_bytes),
      files_(FileSystem::real(), folder, names_of(files), plan_),
      digests_(digests_of(files)),
      checked_(files.size()),
      good_(files.size(), 1) {
}

bool ObjectChunks::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  std::call_once(asked_, [this] {
    ahead_ = new_thread<std::jthread>([this](const std::stop_token& stop) { check_ahead(stop); });
  });
  if (!files_.read(chunk, into)) {
    damaged_ = true;
    return false;
  }
  std::size_t at = 0;
  for (const Extent& extent : plan_.extents(chunk)) {
    const bool whole = extent.bytes == plan_.file_bytes(extent.file);
    const bool good = whole ? !digests_[extent.file] ||
                                  pack::digest_of(into.subspan(at, extent.bytes)) == digests_[extent.file]
                            : is_good(extent.file, {});
    if (!good) {
      damaged_ = true;
      return false;
    }
    at += extent.bytes;
  }
  digest = pack::digest_of(into);
  return true;
}

// No other file has bytes in the chunks of a large one.
pack::Digest ObjectChunks::digest_of(std::uint32_t file, const std::stop_token& stop) {
  pack::Hasher hasher;
  std::vector<std::byte> bytes;
  for (std::size_t chunk = plan_.first_chunk(file); chunk <= plan_.last_chunk(file); ++chunk) {
    if (stop.stop_requested()) throw Stopped();
    bytes.resize(plan_.bytes(chunk));
    if (!files_.read(chunk, bytes)) return {};
    hasher.update(bytes);
  }
  return hasher.digest();
}

bool ObjectChunks::is_good(std::uint32_t file, const std::stop_token& stop) {
  std::call_once(checked_[file],
                 [&] { good_[file] = !digests_[file] || digest_of(file, stop) == *digests_[file] ? 1 : 0; });
  return good_[file] != 0;
}

void ObjectChunks::check_ahead(const std::stop_token& stop) {
  try {
    for (std::uint32_t file = 0; file < plan_.files(); ++file) {
      if (plan_.first_chunk(file) != plan_.last_chunk(file)) is_good(file, stop);
    }
  } catch (const Stopped&) {
  } catch (const std::exception&) {
    // The thread that asks for the file finds it out.
  }
}

}  // namespace lockstep::transfer
