// Opens and reads many small files with several threads and returns them in order, which hides the latency of
// a network file system. At most kWindow files of kMaxLoaded bytes are in memory, and fewer if this process
// may open only few descriptors (ulimit -n).
//
// Threads: next() must be called by one thread; the destructor waits for the files that are being loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/ordered_prefetch.h"

namespace lockstep::pack {

struct LoadedFile {
  std::string path;                ///< as listed
  UniqueFd fd;                     ///< open if the content is not loaded
  std::uint64_t size = 0;          ///< in bytes
  std::int64_t modified_ns = 0;    ///< see file_status.h
  std::int64_t changed_ns = 0;     ///< see file_status.h
  std::uint64_t xxh3 = 0;          ///< XXH3-64 of the content, if it is loaded
  std::vector<std::byte> content;  ///< the file, if it is not larger than kMaxLoaded
  bool loaded() const { return !fd; }
};

/// Keeps the last folder open: the files of one folder follow each other, and opening each by its complete path would
/// look up all parents on the network file system again.
class OpenFolder {
 public:
  /// Opens a file below `top`. Throws Error naming it; a symbolic link is refused.
  UniqueFd open(const std::filesystem::path& top, const std::string& path);

 private:
  std::string name_;
  UniqueFd fd_;
};

class FileLoader {
 public:
  static constexpr std::size_t kWindow = 256;
  static constexpr std::uint64_t kMaxLoaded = std::uint64_t{256} << 10;
  static constexpr int kMaxThreads = 64;
  static constexpr std::size_t kOtherDescriptors = 24;  ///< reserved for the rest of the process

  /// `files` are relative to `folder` and must outlive the loader, which begins with number `first`. If `threads` is 0,
  /// it begins with one thread and adds more while they mostly wait for the file system. The limit of open descriptors
  /// also limits the threads.
  FileLoader(std::filesystem::path folder, const std::vector<std::string>& files, std::size_t first,
             int threads);

  /// The next file in order; call it once for each file. Throws Error naming a file that cannot be read, is
  /// not a regular file, or changes meanwhile. Returns nullopt once *stop is true, even if the file system
  /// hangs.
  std::optional<LoadedFile> next(const std::atomic<bool>* stop = nullptr);

  int threads() const { return prefetch_.threads(); }

 private:
  LoadedFile load(const std::string& path, int worker);

  const std::filesystem::path folder_;
  const std::vector<std::string>& files_;
  const int max_threads_;  // each keeps a folder open
  const bool may_grow_;
  std::vector<OpenFolder> open_folders_;  // of each thread
  std::atomic<double> load_seconds_ =
      0;  // per file, as a moving average; if two threads add at once, one is lost
  std::size_t claimed_;
  OrderedPrefetch<std::size_t, LoadedFile> prefetch_;  // the last member: its threads use the others
};

}  // namespace lockstep::pack
