// Checks of the node's group, folders and file systems.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

#include "plugin/doctor/finding.h"
#include "plugin/spank/options/config.h"

namespace lockstep::doctor {

/// "group": the exporter's group exists.
void check_group(const spank::Config& config, Report& report);

/// "folders": those of lockstep.conf belong to root, nobody else may write to them, and no link leads to
/// them; a missing one is made by the plugin. Records and the RAM tier are on memory file systems.
void check_folders(const spank::Config& config, Report& report);

/// "cache": it is on a local disk with enough space, and its limits fit that disk.
void check_cache(const spank::Config& config, Report& report);

/// "shm": all users may write to /dev/shm, and it has enough space.
void check_shared_memory(const std::filesystem::path& folder, Report& report);

/// The file system of a path that exists, as the kernel names it ("ext4", "nfs4", "fuse.sshfs").
std::string file_system_type(const std::filesystem::path& path);

/// How a file system of this type can serve as a node's disk.
enum class Disk { local, unsure, memory, network };
Disk disk_of(const std::string& type);

}  // namespace lockstep::doctor
