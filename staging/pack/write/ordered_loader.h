// Opens and reads many small files with several threads and hands them out in order: what hides a network
// file system's latency per file. Bounded: at most kWindow files of kWhole bytes are in memory, and fewer
// where this process may have few descriptors open (ulimit -n).
//
// Threads: next() belongs to one thread; the loader's own threads end with it.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"

namespace lockstep::pack {

struct LoadedFile {
  std::string path;                ///< as listed
  UniqueFd fd;                     ///< open, where the content is not loaded
  std::uint64_t size = 0;          ///< in bytes
  std::int64_t modified_ns = 0;    ///< when its content was last changed
  std::int64_t changed_ns = 0;     ///< when anything about it was
  std::uint64_t xxh3 = 0;          ///< XXH3-64 of the content, where it is loaded
  std::vector<std::byte> content;  ///< the file, where it is no larger than kWhole
  bool loaded() const { return !fd; }
};

/// When a file's content was last changed, in nanoseconds.
std::int64_t modified_ns(const struct stat& status);
/// When anything about it was last changed: nobody can set this time, as `touch -r` sets the other.
std::int64_t changed_ns(const struct stat& status);

/// The folder that was opened last: the files of one folder come one after the other, and a network file
/// system would be asked for each of its parents again for each of them.
class OpenFolder {
 public:
  /// Opens a file below `top`. Throws Error naming it; a symbolic link is refused.
  UniqueFd open(const std::filesystem::path& top, const std::string& path);

 private:
  std::string name_;
  UniqueFd fd_;
};

class OrderedLoader {
 public:
  static constexpr std::size_t kWindow = 256;
  static constexpr std::uint64_t kWhole = std::uint64_t{256} << 10;
  static constexpr int kMaxThreads = 64;
  static constexpr std::size_t kOtherDescriptors = 24;  ///< left to the rest of the process, where it has few

  /// `files` are relative to `folder` and must outlive the loader; it begins with number `first`. With 0
  /// `threads` it begins with one and adds some while they mostly wait for the file
  /// system. Of more than the descriptors suffice for, some are left out.
  OrderedLoader(std::filesystem::path folder, const std::vector<std::string>& files, std::size_t first,
                int threads);
  ~OrderedLoader();
  OrderedLoader(const OrderedLoader&) = delete;
  OrderedLoader& operator=(const OrderedLoader&) = delete;

  /// The next file in order; call it once for each of them. Throws Error naming a file that cannot be
  /// read, is no regular file, or changes meanwhile. Nothing once *stop is set, even when the file system
  /// hangs.
  std::optional<LoadedFile> next(const std::atomic<bool>* stop = nullptr);

  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Slot {
    LoadedFile file;
    std::exception_ptr error;
    bool ready = false;
  };

  void start_thread();
  void work();
  Slot load_slot(const std::string& path, OpenFolder& folder) const;
  LoadedFile load(const std::string& path, OpenFolder& folder) const;

  std::filesystem::path folder_;
  const std::vector<std::string>& files_;
  const std::size_t window_;  // files taken and not handed out, any of which may be open
  const int most_threads_;    // each of which keeps a folder open
  const bool may_grow_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable freed_;
  std::vector<Slot> slots_{kWindow};
  std::size_t taken_;        // files given to a thread
  std::size_t handed_;       // files handed out
  double load_seconds_ = 0;  // per file, lately
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace lockstep::pack
