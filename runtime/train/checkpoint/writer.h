// Writes this rank's files of a checkpoint and, on rank 0, makes the checkpoint valid. The ranks agree
// through the file system, not over the network, so this can run in the background.
//
// All ranks write into a hidden folder, .step-000123.TRAINING.RUN.COUNT, and each ends with a report of its files. When rank
// 0 has all reports it writes the manifest, renames the folder to step-000123, and removes old checkpoints.
// Files and folders are synced before they are renamed, so a checkpoint is complete or not there. Files of another
// training are never removed.
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/manifest.h"

namespace lockstep::checkpoint {

struct WriterOptions {
  std::filesystem::path folder;     ///< on a file system that all ranks share
  std::filesystem::path local_dir;  ///< files are written here first; empty: not
  int keep = 2;                     ///< checkpoints
  double timeout_seconds = 300;     ///< that rank 0 waits for another rank that writes nothing
  int rank = 0;
  int ranks = 1;
  std::string node;            ///< this rank's, for messages
  std::string run;             ///< the same on all ranks, different for each run of the program
  std::string training = run;  ///< the same on all ranks and in all runs that continue a training
  std::string dead_run = {};   ///< a run whose leftovers may be removed; empty: none
  /// Sends a text to rank 0, and gives rank 0 the last one of a rank: the reason of a rank that cannot write its report.
  std::function<void(const std::string&)> tell_rank_0 = {};
  std::function<std::string(int rank)> last_text_of = {};
  /// Throws Error if this run must no longer write.
  std::function<void()> check_lock = [] {};
  FileProgress* progress = nullptr;  ///< receives the progress of the files; null: nothing
};

struct OutgoingFile {
  std::string name;
  std::string item;
  std::span<const std::byte> bytes;
  std::vector<int> ranks = {};  ///< as in FileEntry
};

/// Makes the folder and those above it that do not exist, durably.
void make_folders(FileSystem& system, const std::filesystem::path& path);

class Writer {
 public:
  Writer(WriterOptions options, FileSystem& system);

  /// Continues a training whose checkpoints have this name.
  void continue_training(const std::string& training) { options_.training = training; }

  /// Writes the checkpoint of `step`. Calls `released` when the files' memory is no longer needed. `writers`: the ranks
  /// that have files, rank 0 among them, the same on all ranks. Throws Error naming rank and node; the checkpoints that
  /// exist stay valid then.
  void write(std::int64_t step, const std::vector<OutgoingFile>& files, const std::vector<int>& writers,
             const std::function<void()>& released);

  /// Renames a damaged checkpoint, so that it no longer counts as one. Its content stays. Safe from any thread.
  void rename_damaged(const std::filesystem::path& damaged);

  /// Lets rank 0 stop waiting for other ranks. Safe from any thread.
  void cancel() { cancelled_ = true; }

 private:
  using Path = std::filesystem::path;

  void write_files(const Path& into, const std::vector<OutgoingFile>& files,
                   const std::vector<FileEntry>& entries, const std::function<void()>& released);
  std::vector<UniqueFd> write_locally(const std::vector<OutgoingFile>& files);
  void copy(int from, const FileEntry& file, const Path& to);
  UniqueFd make_file(const Path& path, std::uint64_t bytes);
  void write_all(int fd, std::span<const std::byte> bytes, std::uint64_t at, const Path& path);
  void put(const Path& path, std::span<const std::byte> bytes);
  void report(const Path& folder, const RankReport& report);
  void tell(const std::string& error);
  RankReport wait_for(int rank, const Path& folder, std::int64_t step);
  void publish(const Path& folder, std::int64_t step, const std::vector<int>& writers);
  void move_away(const Path& existing);
  void remove(const Path& checkpoint);
  void remove_leftovers(const Path& except);
  void remove_old(std::int64_t step);
  std::optional<std::string> training_of(const Path& checkpoint);

  WriterOptions options_;
  FileSystem& system_;
  std::atomic<bool> cancelled_{false};
  int count_ = 0;              // of the checkpoints
  std::string current_;        // the hidden folder of the checkpoint that is being written
  std::uint64_t written_ = 0;  // bytes of it
  std::uint64_t reported_at_ns_ = 0;
};

}  // namespace lockstep::checkpoint
