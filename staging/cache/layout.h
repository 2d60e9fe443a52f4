// Names inside a store, for the parts of staging/cache.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/file_system.h"

namespace lockstep::cache {

inline constexpr std::string_view kIncoming = ".incoming-";
inline constexpr std::string_view kRemoved = ".removed-";
inline constexpr const char* kDescription = "object.json";
inline constexpr const char* kReserved = "reserved";  // in an incoming folder: the bytes it is to hold
inline constexpr const char* kHeld = "held";          // in leases: the files that slurmstepd locks
inline constexpr const char* kClaims = "claims";      // beside the stores: what users hold
inline constexpr const char* kShared = "shared";      // among the stores: the admin's
inline constexpr const char* kRoomLock = ".room";     // in locks

/// The object that a hidden folder belongs to, or "".
std::string object_of(const std::string& entry);

std::filesystem::path hidden(const std::filesystem::path& objects, std::string_view prefix,
                             const std::string& name);

/// Notes how many bytes an incoming folder is to hold.
void write_reserved(FileSystem& system, const std::filesystem::path& incoming, std::uint64_t bytes);

/// True where a folder has that name itself; a link to one may lead where its owner cannot even look.
bool is_folder(FileSystem& system, const std::filesystem::path& path);

/// Makes a folder, 0700, or takes the one that is there; what a umask or chmod took from its owner is given
/// back. False where it was there already.
bool make_own_folder(FileSystem& system, const std::filesystem::path& folder);

/// Gives the owner back what an earlier call's umask took from a store's own folders and locks. Objects keep
/// their modes, and so does what belongs to somebody else.
void restore_modes(FileSystem& system, const std::filesystem::path& store);

/// Makes all folders in an incoming folder writable again, and its files.
void unseal(FileSystem& system, const std::filesystem::path& folder);

}  // namespace lockstep::cache
