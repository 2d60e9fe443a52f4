#include "staging/pack/formats/format_check.h"

#include "common/error.h"
#include "staging/pack/formats/hdf5_file.h"
#include "staging/pack/formats/lmdb_tree.h"
#include "staging/pack/formats/megatron_index.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

/// A copy may hold only some shards of a pack; its index then has only these.
void check_pack(const fs::path& folder, const Contents& contents) {
  const Index index = Index::load(folder / kIndexName);
  for (const std::string& file : contents.files) {
    if (file == kIndexName) continue;
    const std::size_t s = index.find_shard(file);
    if (s == index.shards()) fail("{} is not a shard of {}", (folder / file).string(), index.file().string());
    check_shard_size(folder, index, s);
  }
}

void check_file(Format format, const fs::path& file) {
  switch (format) {
    case Format::megatron:
      if (file.extension() == ".idx") check_megatron_data(MegatronIndex::load(file));
      return;
    case Format::lmdb:
      return check_lmdb(file);
    case Format::hdf5:
      return check_hdf5(file);
    default:
      return;
  }
}

}  // namespace

void check_complete(const fs::path& folder, const Contents& contents) {
  if (contents.format == Format::tar) return check_pack(folder, contents);
  for (const std::string& file : contents.files)
    if (is_data_file(contents, file)) check_file(contents.format, folder / file);
}

}  // namespace lockstep::pack
