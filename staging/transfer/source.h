// Sources as users name them, their files, and the objects of the cache that are their copies. A pack is identified by its
// index, with a few operations at the source for any number of shards. Other files are looked at one by one, many at the same
// time.
//
// Threads: values; functions are safe from any.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "staging/cache/object.h"
#include "staging/pack/digest.h"
#include "staging/pack/format.h"
#include "staging/pack/index.h"

namespace lockstep::transfer {

/// A server that restarts, or a handle that has become stale: an operation at a source is tried again five times, after 1, 2, 4,
/// 8 and 16 seconds. This is the first pause.
inline constexpr std::chrono::milliseconds kSourcePause{1000};

/// All tries have failed.
class SourceUnreachable : public Error {
 public:
  using Error::Error;
};

/// Calls `work` until it returns or throws something that a retry does not change; before each retry, waits and calls
/// `before_next`. After the last one throws SourceUnreachable, with the last message and how often it was tried.
void retry_source(std::chrono::milliseconds pause, const std::function<void()>& work,
                  const std::function<void()>& before_next);

/// The same, for work with a result or without `before_next`.
template <typename Work>
std::invoke_result_t<Work> retry_source(std::chrono::milliseconds pause, const Work& work) {
  if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
    retry_source(pause, std::function<void()>(std::cref(work)), {});
  } else {
    std::optional<std::invoke_result_t<Work>> result;
    retry_source(pause, [&] { result.emplace(work()); }, {});
    return *std::move(result);
  }
}

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
  /// Of an open file. Throws Error naming `path`.
  static FileState of(int fd, const std::filesystem::path& path);
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

struct ManifestFile {
  std::string name;  ///< below the folder
  std::uint64_t size = 0;
  std::optional<FileState> state;      ///< as this node saw it; not read for the shards of a pack
  std::optional<pack::Digest> digest;  ///< if the source has an index
  bool executable = false;             ///< anyone may execute it
  std::uint64_t holes = 0;             ///< bytes that are not stored (bytes_of_holes())
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
  /// The folder, or the one file in it that the user named.
  std::filesystem::path in(const std::filesystem::path& where) const {
    return one_file ? where / main : where;
  }
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

/// Names, sizes, times and format as text. Another node may have looked at the source.
std::string list_to_text(const Manifest& manifest);
/// The reverse. Throws Error if the text is damaged, or if a name leads out of the folder.
void list_from_text(const std::string& text, Manifest& manifest);

/// Returns the bytes of a file's holes: 0 if there are no holes, the file cannot be opened, or its file system cannot tell.
/// Opens only files that occupy less than their length. `status` is the file's.
std::uint64_t bytes_of_holes(const std::filesystem::path& file, const struct stat& status);

/// Holes of copies are multiples of this number of bytes.
inline constexpr std::size_t kHoleBytes = 4096;

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Returns the first data in [begin, end): empty at `end` if there is only a hole. If the file system cannot tell,
/// everything is data.
ByteRange next_data(int fd, std::uint64_t begin, std::uint64_t end);

}  // namespace lockstep::transfer
