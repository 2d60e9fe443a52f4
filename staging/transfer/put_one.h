// Puts one source, step by step, so that a node alone and the nodes of a step together can do it in one way.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "staging/cache/shared.h"
#include "staging/cache/store.h"
#include "staging/transfer/copy/copy.h"
#include "staging/transfer/manifest.h"
#include "staging/transfer/put.h"
#include "staging/transfer/side_indexes.h"

namespace lockstep::transfer {

class PutOne {
 public:
  /// All outlive it.
  PutOne(cache::Store& store, FileSystem& system, Limit& limit, HangWatch& watch, const PutOptions& options,
         const std::string& source);
  ~PutOne();

  /// Finds what the name stands for, and nothing more than that it can be read.
  void resolve();
  /// Makes the manifest here.
  void look();
  /// Throws Error where this node cannot read the source.
  void check_readable() const;
  /// Takes another node's word for what the source is: the object, whether it is a pack, and its index's
  /// digest, and the digest of other files' state. Throws Error where this node sees another index.
  void take_word(const std::string& object, bool packed, const std::string& index, const std::string& files,
                 const std::string& node);
  const Manifest& manifest() const { return manifest_; }
  const Source& source() const { return source_; }

  /// A good copy is there; it is kept from being removed until this object is gone, and leased. Waits for who
  /// copies it now, unless `wait` is false: then nothing is found.
  bool find(bool wait);
  /// Takes the right to copy, and looks again. False where `wait` is and somebody else has it.
  bool lock(bool wait);

  /// Begins the copy with the list of the files, from the source: a pack's index, a list of names and sizes.
  void make_list();
  /// The same with the list that another node gave.
  void take_list(const std::string& list);
  /// The list as others need it, of a copy or of an object.
  std::string list_text() const;
  /// Reads the list that is there now: makes room, and checks that the source's files are complete.
  void use_list(bool check_source);
  /// Takes over what an earlier copy left; then the copy can run.
  void start_copy();
  Copy& copy() { return *copy_; }
  /// Makes it the object, leases it.
  void publish();

  /// Somebody else copies it on this node: finds it when they are done, or copies it then; also where they
  /// make no progress.
  void wait_for_other();
  /// One digest of all files that no index describes; "" for a pack.
  std::string content() const;
  /// The object's files without a pack's index.
  std::vector<ManifestFile> object_files() const;

  /// Reads every byte of the copy that was found. What is damaged is no longer found, by nobody on this node;
  /// returns what was wrong, or "".
  std::string remove_if_damaged();
  /// What was copied so far is left for the next call, where this one fails.
  void keep() noexcept;

  /// The folder of the object's files.
  std::filesystem::path files() const;
  PutResult result() const;
  void count_from_peer(std::uint64_t bytes);
  void note(const std::string& text);

 private:
  static constexpr int kThreads = 4;
  static constexpr int kMaxThreads = 32;  // that ask the source

  void refuse_own_cache() const;
  void begin(std::uint64_t list_bytes);
  std::filesystem::path index_file() const;
  void fetch_index();
  void choose_shards();
  bool check(Verify verify, const std::filesystem::path& files);
  void check_readable_files(const std::filesystem::path& copy) const;
  bool check_shared();
  bool find_shared();
  int threads() const { return options_.threads > 0 ? options_.threads : kThreads; }
  void lease();
  void must_wait(bool wait);
  void find_or_copy();
  void use_object(const std::string& name);
  cache::ObjectInfo info() const;
  void with_room(const std::function<void()>& work, const char* part = "") const;
  void progressed(std::uint64_t bytes);
  void complete(const std::string& name);
  void complete_unindexed(const ManifestFile& file);

  cache::Store& store_;
  FileSystem& system_;
  Limit& limit_;
  HangWatch& watch_;
  const PutOptions& options_;
  std::string given_;
  std::uint64_t begin_ns_;
  bool waited_ = false;
  bool shared_damaged_ = false;
  bool damage_seen_ = false;  // of what was in the cache
  Source source_;
  Manifest manifest_;
  std::string word_node_, word_files_;  // who looked at the source for this node, and what it saw
  std::optional<cache::Shared> shared_;
  std::optional<cache::Hold> hold_;
  std::unique_ptr<cache::Incoming> incoming_;
  std::vector<ManifestFile> files_;  // what is copied: a pack's shards, without its index
  std::uint64_t list_bytes_ = 0;     // that are part of the object
  std::unique_ptr<SideIndexes> side_indexes_;
  std::unique_ptr<Copy> copy_;
  std::mutex mutex_;  // of what the copying threads tell
  PutProgress progress_;
  PutResult result_;
};

}  // namespace lockstep::transfer
