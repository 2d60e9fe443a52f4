// Packs files into shards, for create(). Several threads open and read the files; the shards are written in order. Complete shards of a killed or stopped call are used again if their files have not changed.
//
// Threads: safe from any thread and process.
#pragma once

#include <cstddef>
#include <filesystem>

#include "common/file_system.h"
#include "staging/pack/write/journal.h"
#include "staging/pack/write/packing.h"
#include "staging/pack/write/unfinished.h"

namespace lockstep::pack {

/// Where the shards are written.
struct Destination {
  std::filesystem::path folder;
  int token_bytes = 0;  ///< if not 0, every file is one sample and must be a multiple of this size
};

/// Packs the files into shards and adds them to the journal, after the shards that can be used again. The
/// result counts all of them. Throws Error naming the file; Stopped if asked to stop.
PackingResult pack_files(const PackingOptions& options, const Destination& destination, Journal& journal,
                         FileSystem& system);

/// For a catch block: keeps the folder if the journal has complete shards, then throws an exception of the same type as
/// the current one, whose message also tells how to continue.
[[noreturn]] void fail_keeping_whole_shards(Unfinished& unfinished, const Journal& journal);

}  // namespace lockstep::pack
