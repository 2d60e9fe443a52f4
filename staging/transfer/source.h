// Resolves sources as users name them, and names their objects in the cache.
//
// Threads: safe from any.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "staging/pack/digest.h"

namespace lockstep::transfer {

/// A resolved name: a folder, files in one folder, a pack or some of its shards.
struct Source {
  std::string name;                          ///< as the user wrote it
  std::filesystem::path folder;              ///< without symbolic links
  std::vector<std::filesystem::path> paths;  ///< of the files or the folder
  std::vector<std::string> shards;  ///< names of the chosen files, sorted; empty for the whole folder
  bool one_file = false;            ///< the user named one file

  std::filesystem::path index_file() const;
};

/// Expands a pattern. All names from braces ("a-{00..31}.tar", "{train,test}/x.tar") must exist; "*", "?" and
/// "[…]" must match something. A name without any of these, or one that exists literally, is returned
/// unchanged.
std::vector<std::filesystem::path> expand_pattern(const std::string& pattern);

/// Finds the folder, and reads nothing in it. Throws Error if it does not exist, or if the files are in
/// several folders.
Source resolve_source(const std::string& name);

/// Throws Error: a file of a source is not as it was first seen. `reader`: by which node, if it was another one.
[[noreturn]] void fail_changed(const std::filesystem::path& file, const std::string& reader = "");

/// While this is the same, the file is unchanged.
struct FileState {
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;

  static FileState of(const struct stat& status);
  /// Whether `now` is the same file. A state from another node has inode 0, because inodes differ there.
  bool fits(const FileState& now) const {
    return size == now.size && mtime_ns == now.mtime_ns && (inode == 0 || inode == now.inode);
  }
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// The state of a pack's index. If it is unchanged, so is the pack's content.
struct IndexState {
  FileState file;
  pack::Digest digest{};  ///< the checksum in the index
  friend bool operator==(const IndexState&, const IndexState&) = default;
};

/// Takes two small reads at the source. Returns nullopt if it is not a pack. Throws Error if it cannot be
/// read.
std::optional<IndexState> index_state(const Source& source);

/// The object's name: 32 hex digits, a digest of the source's path, size, time, inode and checksum.
std::string object_name(const Source& source, const IndexState& index);

}  // namespace lockstep::transfer
