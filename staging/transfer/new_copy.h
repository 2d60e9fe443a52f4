// The last steps of a put: a copy of a source's files in the cache, until it is published as an object.
//
// Threads: one at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "staging/cache/incoming.h"
#include "staging/transfer/copy/copy.h"
#include "staging/transfer/put_context.h"
#include "staging/transfer/side_indexes.h"
#include "staging/transfer/source_lookup.h"

namespace lockstep::transfer {

/// A place in the cache with the list of the source's files: a pack's index, or names and sizes.
struct BegunCopy {
  Manifest manifest;
  CopyLock lock;
  std::unique_ptr<cache::Incoming> incoming;
};

/// Lists the files of a source that another node has identified. Throws Error if this node sees another version.
void rescan_source(const PutContext& context, Manifest& manifest);

/// Reads the list at the source. Throws Error.
BegunCopy begin_copy(const PutContext& context, const Manifest& manifest, CopyLock lock);
/// Takes the list from another node. Throws Error.
BegunCopy begin_copy_with_list(const PutContext& context, const Manifest& manifest, CopyLock lock,
                               const std::string& list);

/// The list of files for other nodes; `files` is the folder of the copy.
std::string list_text(const Manifest& manifest, const std::filesystem::path& files);

class NewCopy {
 public:
  /// Makes room for the files and takes over what an earlier process has copied. `check_source`: checks that
  /// the source has all files of a pack. Throws Error.
  NewCopy(const PutContext& context, BegunCopy begun, bool check_source);
  /// Keeps what is copied for the next call if the source could not be read.
  ~NewCopy();
  NewCopy(const NewCopy&) = delete;
  NewCopy& operator=(const NewCopy&) = delete;

  Copy& copy() { return *copy_; }
  /// Keeps what is copied for the next call.
  void keep() noexcept;
  /// One digest of all files that no index describes; "" for a pack.
  std::string content() const;
  /// Makes it the object, durably, and leases it. Throws Error.
  FoundCopy publish();

 private:
  void list_files(bool check_source);
  CopyOptions copy_options();
  void progressed(std::uint64_t bytes);
  void complete(const std::string& name);
  void complete_unindexed(const ManifestFile& file);

  const PutContext& context_;
  BegunCopy begun_;
  std::vector<ManifestFile> files_;  // a pack's shards, without its index
  std::uint64_t list_bytes_ = 0;     // that are part of the object
  std::unique_ptr<SideIndexes> side_indexes_;
  PutProgress progress_;  // under the reporting mutex
  std::unique_ptr<Copy> copy_;
};

/// All steps on one node. Throws Error.
FoundCopy find_or_copy(const PutContext& context, SourceLookup& lookup);

}  // namespace lockstep::transfer
