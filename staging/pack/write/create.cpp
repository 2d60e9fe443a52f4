#include "staging/pack/write/create.h"

#include <nlohmann/json.hpp>

#include "staging/pack/index.h"
#include "staging/pack/write/file_packing.h"
#include "staging/pack/write/packer.h"
#include "staging/pack/write/unfinished.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

/// Removes the journal that a call left when it was killed just after publishing.
void clear_published(const fs::path& out, FileSystem& system) {
  const fs::path hidden = unfinished_folder(out);
  if (!system.status(hidden) || system.status(hidden / kPack)) return;
  const Unfinished removed(hidden, out, system);
}

/// Describes the call: a call continues another one only if these values are equal.
std::string purpose_of(const CreateOptions& options) {
  return nlohmann::json({{"create", 2},
                         {"folder", fs::weakly_canonical(options.folder).string()},
                         {"shard_bytes", options.shard_bytes},
                         {"token_bytes", options.token_bytes}})
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

fs::path unfinished_folder(const fs::path& out) {
  return out.parent_path() / ("." + out.filename().string() + ".unfinished");
}

fs::path new_folder(const fs::path& name, FileSystem& system) try {
  fs::path out = fs::absolute(name).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();
  if (!fs::is_directory(out.parent_path()))
    fail("{} is not a folder: create it first", out.parent_path().string());
  if (fs::exists(fs::symlink_status(out)) && !(fs::is_directory(out) && fs::is_empty(out))) {
    clear_published(out, system);
    fail("{} already exists: name a new folder with --out", out.string());
  }
  return out;
} catch (const fs::filesystem_error& error) {
  fail("cannot access {}: {}", error.path1().string(), error.code().message());
}

CreateResult create(const CreateOptions& options) {
  if (options.files.empty()) fail("{}: nothing to pack", options.folder.string());
  FileSystem& system = options.system != nullptr ? *options.system : FileSystem::real();
  const fs::path out = new_folder(options.out, system);
  Unfinished unfinished(unfinished_folder(out), out, system);
  const fs::path pack = unfinished.folder() / kPack;
  (void)system.make_folder(pack, 0755);
  Journal journal(unfinished.folder() / kJournal, purpose_of(options), system);
  try {
    const Destination destination{.folder = pack, .token_bytes = options.token_bytes};
    CreateResult result = pack_files(options, destination, journal, system);
    result.pack_bytes += write_index(pack / kIndexName, options.token_bytes, journal, system);
    publish_pack(pack, out, system);
    return result;
  } catch (...) {
    fail_keeping_whole_shards(unfinished, journal);
  }
}

}  // namespace lockstep::pack
