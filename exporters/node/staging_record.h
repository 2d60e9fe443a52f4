// What staging did for a job on a node, read from staging.json, which lockstep-stage writes beside the ranks'
// records. The file is a user's, so nothing in it is trusted.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::exporter {

struct StagedSource {
  std::string source;
  std::uint64_t bytes = 0;
  std::uint64_t from_source = 0;  ///< read from the shared file system
  std::uint64_t from_peers = 0;   ///< got from the job's other nodes
  bool hit = false;               ///< it was in the node's cache already
  double seconds = 0;
};

struct StagingRecord {
  std::string node;
  std::vector<StagedSource> sources;

  std::uint64_t bytes() const;
  std::uint64_t from_source() const;
  std::uint64_t from_peers() const;
  std::size_t hits() const;
  double seconds() const;
};

/// Reads `name` in an open folder; nothing where there is no such file. Refuses links, anything but a regular
/// file, more than 1 MiB, and text that is not what lockstep-stage writes: throws Error naming the file.
std::optional<StagingRecord> read_staging_record(int folder, const std::string& name);

/// The same for a path.
std::optional<StagingRecord> read_staging_record(const std::filesystem::path& path);

}  // namespace lockstep::exporter
