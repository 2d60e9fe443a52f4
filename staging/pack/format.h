// Recognises the format of a source and lists its files. Code that reads, stages or converts data asks here
// first, so that a format is recognised in one place only.
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
  recordio,  ///< dmlc's .rec, with or without .idx
  mds,       ///< MosaicML's shards with index.json
  npy,
  plain,  ///< any other files
};

/// "tar", "megatron", "tfrecord", …
std::string_view name_of(Format format);

/// The files of a source.
struct Contents {
  Format format = Format::plain;
  std::filesystem::path folder;    ///< holds the files; without symbolic links
  std::vector<std::string> files;  ///< names relative to the folder, sorted; regular files only
  /// The user named one file. `files` may also have files that belong to it, such as an .idx.
  bool one_file = false;
};

/// Recognises `source`, a folder or a file. Reads file names, the first bytes of at most one file, and an
/// index.json that may describe MDS data; of a tar pack it reads the index only. Throws Error naming the path
/// if the source does not exist, if a folder holds links, devices or sockets, or if a file of the format is
/// missing.
Contents contents_of(const std::filesystem::path& source);

/// Checks that the files in `folder` (the source or a copy) are as long as the format's own tables say. Reads
/// tables, but no payload. Throws Error naming the files, for example a .bin that is shorter than its .idx
/// says.
void check_complete(const std::filesystem::path& folder, const Contents& contents);

}  // namespace lockstep::pack
