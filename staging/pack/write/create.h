// Makes a pack: many small files become a few tar shards and an index.
//
// It is deterministic: the same files give the same bytes with any number of threads. It is atomic: the
// folder appears under its name when it is complete and synced. It can be continued: a call that is killed,
// stopped or fails keeps its complete shards in a hidden folder beside the new one, and the same call
// continues after them, with the same result as one call.
//
// Threads: safe from any thread and process; of two calls for the same folder the second is refused.
#pragma once

#include <filesystem>

#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct CreateOptions : PackingOptions {
  std::filesystem::path out;  ///< the new pack; must not exist, or must be an empty folder
  int token_bytes = 0;        ///< 2 or 4 if every file holds little-endian tokens of that size
};

/// The result counts all shards; pack_bytes includes the index.
using CreateResult = PackingResult;

/// Throws Error naming the file or folder that cannot be packed; Stopped if asked to stop.
CreateResult create(const CreateOptions& options);

/// The folder of a new pack as an absolute path without a slash at its end. Throws Error if its parent does
/// not exist, or if the folder exists and is not empty.
std::filesystem::path new_folder(const std::filesystem::path& name, FileSystem& system = FileSystem::real());

/// The hidden folder beside it in which the pack is written.
std::filesystem::path unfinished_folder(const std::filesystem::path& out);

}  // namespace lockstep::pack
