// A file system that calls a function at the n-th read of a source's files.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "common/file_system.h"

namespace lockstep::transfer {

struct SourceRead {
  int n = 0;  ///< from 1
  /// The same of the reads of shards; 0 for other files. Every node that copies reads at least one chunk. A slow one may read
  /// no more: the others take over the rest.
  int of_shards = 0;
  std::filesystem::path file;
  std::uint64_t offset = 0;
};

class SourceReads : public FileSystem {
 public:
  using Before = std::function<void(const SourceRead&)>;
  using After = std::function<void(const SourceRead&, std::span<std::byte> bytes)>;
  /// `before` is called before each read of a file below the folder; `after` may change what was read.
  SourceReads(std::filesystem::path folder, Before before, After after = {})
      : folder_(std::move(folder)), before_(std::move(before)), after_(std::move(after)) {}
  /// The number of reads so far.
  int reads() const { return reads_; }
  ssize_t call(const FileCall& call) override {
    const std::string file = call.path;
    if (call.kind != Kind::read || !file.starts_with(folder_.string() + "/")) return FileSystem::call(call);
    const bool of_shard = std::filesystem::path(file).extension() == ".tar";
    const SourceRead read{.n = ++reads_,
                          .of_shards = of_shard ? ++shard_reads_ : 0,
                          .file = file,
                          .offset = static_cast<std::uint64_t>(call.offset)};
    if (before_) before_(read);
    const ssize_t got = FileSystem::call(call);
    if (after_ && got > 0) after_(read, {call.into, static_cast<std::size_t>(got)});
    return got;
  }

 private:
  std::filesystem::path folder_;
  Before before_;
  After after_;
  std::atomic<int> reads_ = 0;
  std::atomic<int> shard_reads_ = 0;
};

}  // namespace lockstep::transfer
