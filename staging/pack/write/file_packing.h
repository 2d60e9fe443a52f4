// Files into shards: what create() and append() do alike. Files are opened and read by several threads and
// written in order; what a killed or stopped call has packed is taken over where the files are still the
// same.
//
// Threads: safe from any thread and process.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "common/file_system.h"
#include "staging/pack/write/journal.h"
#include "staging/pack/write/packing.h"
#include "staging/pack/write/unfinished.h"

namespace lockstep::pack {

/// Where the shards go.
struct Destination {
  std::filesystem::path folder;  ///< where they grow
  std::size_t first_number = 0;  ///< of the first shard's name
  int token_bytes = 0;  ///< every file is a whole number of tokens of that size, and a sample of its own
  /// Finds a whole shard of that name.
  std::function<std::filesystem::path(const std::string& name)> place;
};

/// Packs the files into shards and the journal, after those that are there and still right. The result counts
/// them all. Throws Error naming the file, Stopped when asked to stop.
PackingResult pack_files(const PackingOptions& options, const Destination& destination, Journal& journal,
                         FileSystem& system);

/// For a catch block: keeps the folder where there are whole shards in the journal, and throws the exception
/// at hand again, of the same kind and with the way to go on at the end of its message.
[[noreturn]] void fail_keeping_whole_shards(Unfinished& unfinished, const Journal& journal);

}  // namespace lockstep::pack
