// Adds samples to a pack, as new shards after those it has. The index is replaced last, by a rename: until
// then the pack is the old one, and a reader that has the old index open goes on with it after that too,
// since no shard that it knows is touched. Continued as create() is.
//
// Threads: safe from any thread and process; of two calls for the same pack the second is refused.
#pragma once

#include <filesystem>
#include <optional>

#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct AppendOptions : PackingOptions {
  std::filesystem::path pack;      ///< folder of shards, or its index
  std::optional<int> token_bytes;  ///< checked against the pack's, which hold for what is added
};

/// The result counts what was added; pack_bytes counts the new shards and the whole index. Throws Error
/// naming the file that cannot be added, or the sample that is in the pack already; Stopped when asked to
/// stop.
PackingResult append(const AppendOptions& options);

}  // namespace lockstep::pack
