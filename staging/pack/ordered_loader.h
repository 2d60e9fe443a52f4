// Opens and reads many small files with several threads and hands them out in order: what hides a network
// file system's latency per file. Bounded: at most kWindow files of kWhole bytes are in memory.
//
// Threads: next() belongs to one thread; the loader's own threads end with it.
#pragma once

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"

namespace lockstep::pack {

struct LoadedFile {
  std::string path;                ///< as listed
  UniqueFd fd;                     ///< open, where the content is not loaded
  std::uint64_t size = 0;          ///< in bytes
  std::uint64_t xxh3 = 0;          ///< XXH3-64 of the content, where it is loaded
  std::vector<std::byte> content;  ///< the file, where it is no larger than kWhole
  bool loaded() const { return !fd; }
};

class OrderedLoader {
 public:
  static constexpr std::size_t kWindow = 256;
  static constexpr std::uint64_t kWhole = std::uint64_t{256} << 10;

  /// `files` are relative to `folder` and must outlive the loader.
  OrderedLoader(std::filesystem::path folder, const std::vector<std::string>& files, int threads);
  ~OrderedLoader();
  OrderedLoader(const OrderedLoader&) = delete;
  OrderedLoader& operator=(const OrderedLoader&) = delete;

  /// The next file in order; call it exactly files.size() times. Throws Error naming a file that cannot be
  /// read, is no regular file, or changes meanwhile.
  LoadedFile next();

 private:
  struct Slot {
    LoadedFile file;
    std::exception_ptr error;
    bool ready = false;
  };

  void work();
  LoadedFile load(const std::string& path) const;

  std::filesystem::path folder_;
  const std::vector<std::string>& files_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable freed_;
  std::vector<Slot> slots_{kWindow};
  std::size_t taken_ = 0;   // files given to a thread
  std::size_t handed_ = 0;  // files handed out
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace lockstep::pack
