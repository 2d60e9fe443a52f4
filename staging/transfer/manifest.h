// The files of a source, and the object of the cache that is its copy. A pack is identified by its index, with a few
// operations at the source for any number of shards. Other files are looked at one by one, many at the same time.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "staging/cache/object.h"
#include "staging/pack/digest.h"
#include "staging/pack/format.h"
#include "staging/pack/index.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

struct ManifestFile {
  std::string name;  ///< below the folder
  std::uint64_t size = 0;
  std::optional<FileState> state;      ///< as this node saw it; not read for the shards of a pack
  std::optional<pack::Digest> digest;  ///< if the source has an index
  bool executable = false;             ///< anyone may execute it
  std::uint64_t holes = 0;             ///< bytes that are not stored (copy/holes.h)
};

std::vector<std::uint64_t> sizes_of(const std::vector<ManifestFile>& files);
std::vector<std::string> names_of(const std::vector<ManifestFile>& files);
/// The shards that an index lists, with their digests.
std::vector<ManifestFile> shards_of(const pack::Index& index);

/// The files of an object without an index.
std::vector<ManifestFile> files_of(const cache::ObjectInfo& info);

struct Manifest {
  Source source;
  pack::Format format = pack::Format::plain;
  std::filesystem::path folder;     ///< holds the files, without symbolic links
  std::vector<ManifestFile> files;  ///< empty for a pack: its index lists them
  bool one_file = false;            ///< the user named one file
  std::string main;                 ///< the name of that file
  IndexState index;                 ///< of a pack
  std::string seen_by;     ///< the node that looked at the source for this one; `files` may be missing
  std::string seen_state;  ///< state_digest() there
  std::string object;      ///< the object's name: 32 hex digits of all this

  bool packed() const { return format == pack::Format::tar; }
  /// The source as object.json names it.
  std::string shown() const { return (one_file ? folder / main : folder).string(); }
};

/// Looks at the source. Throws Error if nothing is there, or if a file is shorter than its format says.
Manifest look_at(const Source& source);

/// Throws Error if the index of a pack has changed. (Other files are checked while they are read.)
void check_unchanged(const Manifest& manifest);

/// One digest of all names, sizes and times, equal on nodes that see the same files.
std::string state_digest(const Manifest& manifest);

/// A text that differs between two versions of the source and is equal on all nodes: the digest of a pack's index, or
/// state_digest().
std::string source_version(const Manifest& manifest);

/// Names, sizes, times and format as text, for nodes that have not looked at the source.
std::string list_to_text(const Manifest& manifest);
/// The reverse. Throws Error if the text is damaged, or if a name leads out of the folder.
void list_from_text(const std::string& text, Manifest& manifest);

}  // namespace lockstep::transfer
