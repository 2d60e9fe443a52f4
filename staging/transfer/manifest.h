// What a source consists of, and which object of the cache is its copy. A pack's own index stands for its
// shards: asking for its state takes a handful of operations at the source however many shards there are.
// Files of other formats are asked for their state one by one, many at a time.
//
// Threads: values; functions are safe from any.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/pack/format.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

/// While it is the same, so is the file.
struct FileState {
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;

  static FileState of(const struct stat& status);
  /// Whether `now` is the same file; what another node saw (inode 0) has an inode of its own there.
  bool fits(const FileState& now) const {
    return size == now.size && mtime_ns == now.mtime_ns && (inode == 0 || inode == now.inode);
  }
  friend bool operator==(const FileState&, const FileState&) = default;
};

struct ManifestFile {
  std::string name;  ///< below the folder
  std::uint64_t size = 0;
  std::optional<FileState> state;      ///< as this node saw it; not looked at for the shards of a pack
  std::optional<pack::Digest> digest;  ///< where something at the source says it
};

struct Manifest {
  Source source;
  pack::Format format = pack::Format::plain;
  std::filesystem::path folder;     ///< holds the files, without symbolic links
  std::vector<ManifestFile> files;  ///< of a pack none: its index has them
  bool one_file = false;            ///< the user named one file
  std::string main;                 ///< its name then
  Identity index;                   ///< of a pack
  std::string object;               ///< the object's name: 32 hex digits of all this

  bool packed() const { return format == pack::Format::tar; }
  std::uint64_t bytes() const;
  /// What object.json says it is a copy of.
  std::string shown() const;
};

/// Looks at the source; `watch` hears of what may hang there. Throws Error where nothing is there, or where a
/// file is shorter than its format says.
Manifest look_at(const Source& source, HangWatch& watch = HangWatch::none());

/// Throws Error where the index of a pack is no longer what it was. (Other files are watched as they are
/// read.)
void check_unchanged(const Manifest& manifest, HangWatch& watch);

/// One digest of all names, sizes and times: nodes that see the same files come to the same.
std::string state_digest(const Manifest& manifest);

/// Names, sizes, times and format as text, for nodes that have not looked themselves.
std::string list_to_text(const Manifest& manifest);
/// The reverse. Throws Error where the text is none, or names lead out of the folder.
void list_from_text(const std::string& text, Manifest& manifest);

}  // namespace lockstep::transfer
