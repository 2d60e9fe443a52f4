// Which format a source is in, and which files make it up. Everything that reads, stages or converts data
// asks here first, so that a format is recognised in one place.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::pack {

enum class Format {
  tar,       ///< tar shards with index.lockstep
  megatron,  ///< Megatron-Core's .bin and .idx
  tfrecord,
  lmdb,
  hdf5,
  recordio,  ///< dmlc's .rec, with .idx where there is one
  mds,       ///< MosaicML's shards with index.json
  npy,
  plain,  ///< any other files
};

/// "tar", "megatron", "tfrecord", …
std::string_view name_of(Format format);

/// The files behind a name.
struct Contents {
  Format format = Format::plain;
  std::filesystem::path folder;    ///< holds the files, without symbolic links
  std::vector<std::string> files;  ///< names below the folder, sorted; regular files only
  bool one_file = false;  ///< the user named one file (files that belong to it, as an .idx, may be more)
};

/// Finds what `source`, a folder or a file, is. Reads names, and the first bytes of at most one file,
/// or an index.json that may be of MDS data; for a tar pack no file is looked at but its index. Throws Error
/// where nothing is there, where a folder holds links, devices or sockets, or where a file that belongs to
/// the format is missing, naming it.
Contents contents_of(const std::filesystem::path& source);

/// Whether the files at `folder` (the source's or a copy's) are as long as the format's own tables say: a
/// .bin that is shorter than its .idx is refused, naming both. Reads tables, never payload. Throws Error.
void check_complete(const std::filesystem::path& folder, const Contents& contents);

}  // namespace lockstep::pack
