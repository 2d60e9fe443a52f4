// The first steps of a put: which object of the cache is the copy of a source, and whether this node has a good one.
//
// Threads: SourceLookup one at a time; functions are safe from any. check_copy() starts its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "staging/cache/shared.h"
#include "staging/transfer/put.h"
#include "staging/transfer/put_context.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {

/// Checks the files of an object in `folder`: against their index, or else against the object.json beside it.
/// Throws Error that names the damaged file. A full check calls `checked` after each file, with its bytes, from
/// several threads.
void check_copy(const std::filesystem::path& folder, Verify verify, int threads,
                const std::function<void(std::uint64_t bytes)>& checked = {});

/// Looks at the source on this node.
Manifest look_at_source(const PutContext& context);

/// Takes over what another node saw: the name of the object, whether it is a pack, and source_version(). The list of files is
/// still missing. Throws Error if this node sees another index there.
Manifest adopt_identity(const PutContext& context, const std::string& node, const std::string& object,
                        bool packed, const std::string& version);

/// Throws Error if this node cannot read the source, even if its data comes from other nodes.
void check_readable(const PutContext& context);

/// Throws Error if the cache lies in the source.
void refuse_own_cache(const PutContext& context, const Manifest& manifest);

/// The right to copy an object.
struct CopyLock {
  cache::ObjectLock lock;
  Heartbeat::Beating heartbeat;  // ends before the lock
  std::string incoming{};        ///< the name of the copy while it is made, if it is not the object's
};

/// Another process copies the object.
struct Busy {};

class SourceLookup {
 public:
  SourceLookup(const PutContext& context, Manifest manifest)
      : context_(context), manifest_(std::move(manifest)) {}

  const Manifest& manifest() const { return manifest_; }

  using Result = std::variant<FoundCopy, CopyLock, Busy>;
  /// Returns a good copy, leased, or else the right to make one. If another process copies the object, waits
  /// for it, or returns Busy if `wait` is false. Throws cache::NoProgress if the other process makes none.
  Result find_or_lock(bool wait);

  /// The right to make a second copy beside that of another process. The first one that is complete becomes the object.
  CopyLock lock_own_copy(const std::string& step);

  /// Reads every byte of a copy. If it is damaged, removes the copy and returns true; a shared copy stays, but this put
  /// no longer uses it.
  bool remove_if_damaged(FoundCopy& copy);

  /// The object's files, without a pack's index.
  std::vector<ManifestFile> files_of(const FoundCopy& copy) const;
  /// One digest of all files that no index describes; "" for a pack.
  std::string content_of(const FoundCopy& copy) const;

 private:
  std::optional<FoundCopy> find_shared();
  bool check_shared();
  void check_readable_files(const std::filesystem::path& copy) const;
  bool check(Verify verify);
  FoundCopy found(cache::ObjectLock lock, bool shared);
  cache::ObjectInfo info(bool shared, bool brief) const;
  cache::ObjectLock lock(FileSystem::LockKind kind, bool wait);
  CopyLock beating(cache::ObjectLock lock, std::string incoming = {}) const;

  const PutContext& context_;
  Manifest manifest_;
  std::optional<cache::Shared> shared_;
  bool shared_damaged_ = false;
  bool damage_seen_ = false;  // of the copy in the user's store
  bool waited_ = false;
};

}  // namespace lockstep::transfer
