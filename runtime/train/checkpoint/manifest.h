// The manifest of a checkpoint, manifest.json: the step, the number of ranks, the training, and size and digest of
// each file. A folder is a checkpoint if it has one; it is written last.
//
// Threads: values; a Digest belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

struct XXH3_state_s;

namespace lockstep::checkpoint {

inline constexpr int kFormat = 2;
inline constexpr const char* kManifestName = "manifest.json";

/// The digest of bytes that come in parts: XXH3 of 128 bits, as `xxhsum -H2` prints it. It detects damage, but not forgery.
class Digest {
 public:
  Digest();
  void add(std::span<const std::byte> bytes);
  /// 32 hex digits.
  std::string text() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// 32 hex digits.
std::string digest_of(std::span<const std::byte> bytes);
std::string digest_of(std::string_view text);

/// A checkpoint cannot be read, so the one before it is used. The message does not name the folder.
class Damaged : public Error {
 public:
  using Error::Error;
};

struct FileEntry {
  std::string name;
  std::string item;  ///< the name in Checkpointer::add(); empty for the file of all small items
  int rank = 0;      ///< that wrote it
  std::uint64_t bytes = 0;
  std::string digest;
  std::vector<int> ranks = {};  ///< whose state it has; empty: that of `rank`
};

struct Manifest {
  std::int64_t step = 0;
  int ranks = 0;
  std::string training = {};  ///< the same in all checkpoints of a training
  std::vector<FileEntry> files = {};
};

std::string to_text(const Manifest& manifest);
/// Throws Damaged if the text is not a manifest or was modified, and Error for another format version.
Manifest manifest_from_text(std::string_view text);

/// A rank's message to rank 0: the files that it has written, or why it failed.
struct RankReport {
  std::string error;  ///< empty if it has written all
  std::vector<FileEntry> files;
};

std::string to_text(const RankReport& report);
RankReport report_from_text(std::string_view text);

/// "step-000123", and back: -1 for other names.
std::string folder_name(std::int64_t step);
std::int64_t step_of(std::string_view folder_name);

}  // namespace lockstep::checkpoint
