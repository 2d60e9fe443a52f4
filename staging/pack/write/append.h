// Adds samples to a pack, in new shards after the existing ones. A rename replaces the index last; until then the pack
// is the old one. A reader that has opened the old index can go on using it, since existing shards do not change. The
// same call continues an interrupted one, as with create().
//
// Threads: safe from any thread and process; of two calls for the same pack the second is refused.
#pragma once

#include <filesystem>
#include <optional>

#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct AppendOptions : PackingOptions {
  std::filesystem::path pack;      ///< the pack's folder or its index
  std::optional<int> token_bytes;  ///< must be the pack's, if given
};

/// The result counts the added samples; pack_bytes is the size of the new shards and the index. Throws Error
/// naming a file that cannot be added, or a sample that is already in the pack; Stopped if asked to stop.
PackingResult append(const AppendOptions& options);

}  // namespace lockstep::pack
