// Reads consistent snapshots of a rank's record, while the rank writes it and after the rank has died. The
// reader uses pread, because a file that is truncated under a mapping would kill it; it takes no lock and
// trusts nothing in the file: it refuses a symbolic link, anything but a regular file, and a wrong magic,
// version or size.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "exporters/record/snapshot.h"

namespace lockstep::record {

class Reader {
 public:
  /// Opens and checks a record. Throws RecordError naming the file and what is wrong with it.
  explicit Reader(const std::filesystem::path& path);
  /// The same for `name` in an open folder.
  Reader(int folder, const std::string& name);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// The rank that wrote it.
  const Identity& identity() const { return identity_; }

  /// The counters of the last complete step, and up to `last_steps` last steps. Throws RecordError if the
  /// file shrank, or if the writer overtook the reader many times in a row.
  Snapshot read(std::size_t last_steps = kRingSteps) const;

 private:
  void check();
  void pread_exactly(void* into, std::size_t bytes, std::size_t offset) const;
  bool writer_lives() const;

  std::string name_;
  int fd_ = -1;
  std::uint32_t owner_ = 0;
  Header header_;
  Identity identity_;
};

/// The rank of "rank-000003.record"; nullopt for any other name.
std::optional<int> rank_of(std::string_view file);

/// Reads the record `file`, whose name is that of `rank`, in an open folder. Without its last steps: with a thousand ranks
/// they would take most of the memory. Throws RecordError.
Snapshot read_without_steps(int folder, const std::string& file, int rank);

}  // namespace lockstep::record
