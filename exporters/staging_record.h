// The result of staging for a job on a node, read from staging.json. lockstep-stage writes that file beside
// the ranks' records. It belongs to a user, so nothing in it is trusted.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct StagedSource {
  std::string source;
  std::uint64_t bytes = 0;
  std::uint64_t done = 0;         ///< of `bytes`: on this node by now
  std::uint64_t from_source = 0;  ///< read from the shared file system
  std::uint64_t from_peers = 0;   ///< received from the job's other nodes
  bool hit = false;               ///< it was in the node's cache already
  double seconds = 0;
};

/// The state of a job's data on a node.
enum class StagingState {
  staging,  ///< being copied
  done,     ///< complete on the node
  source,   ///< read from the source, since copying failed
  failed,
};

/// The names in the order of the enumeration.
inline constexpr std::array<const char*, 4> kStagingStates{"staging", "done", "source", "failed"};
inline const char* name(StagingState state) {
  return kStagingStates.at(static_cast<std::size_t>(state));
}

struct StagingRecord {
  std::string node;
  StagingState state = StagingState::done;
  std::vector<StagedSource> sources;

  /// Of all sources, such as sum(&StagedSource::bytes).
  template <typename T>
  T sum(T StagedSource::*field) const {
    T total{};
    for (const StagedSource& source : sources) total += source.*field;
    return total;
  }
  std::size_t hits() const;
};

/// Reads `name` in an open folder; returns nullopt if there is no such file. Throws Error naming the file if
/// it is a link or not a regular file, is larger than 1 MiB, or is not what lockstep-stage writes. The message is short,
/// whatever the file holds.
std::optional<StagingRecord> read_staging_record(int folder, const std::string& name);

/// The same for a path.
std::optional<StagingRecord> read_staging_record(const std::filesystem::path& path);

}  // namespace lockstep
