// Measures how fast a node reads a source and its own cache: whether staging helps, and where to.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "plugin/doctor/finding.h"
#include "plugin/spank/options/config.h"

namespace lockstep::doctor {

struct ReadSpeed {
  double bytes_per_second = 0;  ///< one reader, from begin to end
  double reads_per_second = 0;  ///< 4 KiB at random places, one after the other; 0 if the file is too small
  bool direct = true;           ///< false: the file system has no direct I/O, so memory may have helped
};

struct DiskFigures {
  std::string source, cache;
  ReadSpeed source_speed, cache_speed;
  std::uint64_t source_bytes = 0;
  std::uint64_t ram = 0;           ///< bytes of the RAM tier; 0: none
  std::optional<bool> rotational;  ///< of the cache's disk, if the kernel knows
};

/// "disks": what the figures mean for jobs that read this source.
void judge_disks(const DiskFigures& figures, Report& report);

/// Measures for about four seconds, with direct I/O where the file system has it, and judges. Writes up to 256 MiB into
/// the cache, in a file without a name, which the kernel removes when this process ends.
void check_disks(const std::filesystem::path& source, const spank::Config& config, Report& report);

}  // namespace lockstep::doctor
