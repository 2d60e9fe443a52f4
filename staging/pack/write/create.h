// Makes a pack: many small files become a few tar shards and an index. Deterministic (the same files give the
// same bytes, whatever the number of threads), atomic (the folder appears under its name when it is complete
// and synced) and continued: what a killed, stopped or failed call has packed is kept, in whole shards, in a
// hidden folder beside the new one, and the same call goes on after it. The result is the same as of one
// call.
//
// Threads: safe from any thread and process; two calls for the same folder do not mix, the second is refused.
#pragma once

#include <filesystem>

#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct CreateOptions : PackingOptions {
  std::filesystem::path out;  ///< the new pack; must not exist, or be an empty folder
  int token_bytes = 0;        ///< 2 or 4 where every file holds little-endian tokens of that size
};

/// The sizes of the result are of all shards; pack_bytes counts the index too.
using CreateResult = PackingResult;

/// Throws Error naming the file or folder that cannot be packed, Stopped when asked to stop.
CreateResult create(const CreateOptions& options);

/// The folder that a pack gets, absolute and without a slash at its end. Throws Error where its parent is not
/// there or it exists already and holds anything.
std::filesystem::path new_folder(const std::filesystem::path& given, FileSystem& system = FileSystem::real());

/// The hidden folder beside it in which it grows.
std::filesystem::path unfinished_folder(const std::filesystem::path& out);

}  // namespace lockstep::pack
