#include "staging/transfer/side_indexes.h"

#include <atomic>

#include "staging/pack/formats/side_index.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

constexpr int kManyAtOnce = 32;  // a network file system answers many questions in the time of one

}  // namespace

std::uint64_t side_index_bytes(const Manifest& manifest, const std::vector<ManifestFile>& files,
                               SourceWatch& watch) {
  std::atomic<std::uint64_t> bytes = 0;
  if (!pack::has_side_index(manifest.format)) return bytes;
  parallel_for(files.size(), kManyAtOnce, [&](std::size_t f, const std::function<bool()>&) {
    const SourceWatch::Call call = watch.call(manifest.folder / files[f].name);
    bytes += pack::side_index_bytes(manifest.folder / files[f].name);
  });
  return bytes;
}

std::uint64_t copy_side_indexes(FileSystem& system, const Manifest& manifest,
                                const std::vector<ManifestFile>& files, const std::filesystem::path& target,
                                SourceWatch& watch) {
  std::atomic<std::uint64_t> bytes = 0;
  if (!pack::has_side_index(manifest.format)) return bytes;
  parallel_for(files.size(), kManyAtOnce, [&](std::size_t f, const std::function<bool()>&) {
    const ManifestFile& file = files[f];
    if (!file.state) return;
    const SourceWatch::Call call = watch.call(manifest.folder / file.name);
    bytes +=
        pack::copy_side_index(system, manifest.folder / file.name, target / file.name, file.state->mtime_ns);
  });
  return bytes;
}

}  // namespace lockstep::transfer
