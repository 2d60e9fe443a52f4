// Writes this rank's files of a checkpoint and, on rank 0, makes the checkpoint valid. The ranks agree
// through the file system, not over the network, so this can run in the background.
//
// All ranks write into a hidden folder, .step-000123.RUN, and each ends with a report of its files. When rank
// 0 has all reports it writes the manifest, renames the folder to step-000123, and removes old checkpoints.
// Files and folders are synced before they are renamed, so a checkpoint is complete or not there.
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "runtime/train/checkpoint/manifest.h"

namespace lockstep::checkpoint {

struct WriterOptions {
  std::filesystem::path folder;     ///< on a file system that all ranks share
  std::filesystem::path local_dir;  ///< files are written here first; empty: not
  int keep = 2;                     ///< checkpoints
  double timeout_seconds = 300;  ///< that rank 0 waits for the other ranks after it has written its own files
  int rank = 0;
  int ranks = 1;
  std::string node;  ///< this rank's, for messages
  std::string run;   ///< the same on all ranks, different for each run of the program
};

struct OutgoingFile {
  std::string name;
  std::string item;
  std::span<const std::byte> bytes;
};

class Writer {
 public:
  Writer(WriterOptions options, FileSystem& system);

  /// Writes the checkpoint of `step`. Calls `released` when the files' memory is no longer needed. Throws
  /// Error naming rank and node; the checkpoints that exist stay valid then.
  void write(std::int64_t step, const std::vector<OutgoingFile>& files,
             const std::function<void()>& released);

  /// Renames a damaged checkpoint, so that it no longer counts as one. Its content stays. Safe from any thread.
  void set_aside(const std::filesystem::path& damaged);

  /// Lets rank 0 stop waiting for other ranks. Safe from any thread.
  void cancel() { cancelled_ = true; }

 private:
  using Path = std::filesystem::path;

  void write_files(const Path& into, const std::vector<OutgoingFile>& files,
                   const std::function<void()>& released);
  std::vector<Path> write_locally(const std::vector<OutgoingFile>& files);
  void copy(const Path& from, const Path& to);
  void make_folders(const Path& path);
  void put(const Path& path, std::span<const std::byte> bytes);
  void report(const Path& folder, const RankReport& report);
  RankReport wait_for(int rank, const Path& folder, std::int64_t step, std::uint64_t begin_ns);
  void publish(const Path& folder, std::int64_t step);
  void move_away(const Path& existing);
  void remove(const Path& checkpoint);
  void remove_leftovers(const Path& except);
  void remove_old(std::int64_t step);
  bool is_checkpoint(const Path& folder);

  WriterOptions options_;
  FileSystem& system_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace lockstep::checkpoint
