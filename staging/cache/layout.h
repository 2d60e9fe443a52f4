// Names inside a store, for the parts of staging/cache.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_system.h"

namespace lockstep::cache {

inline constexpr std::string_view kIncoming = ".incoming-";
inline constexpr std::string_view kRemoved = ".removed-";
inline constexpr const char* kDescription = "object.json";
inline constexpr const char* kReserved = "reserved";   // in an incoming folder: the bytes that it will hold
inline constexpr const char* kHeld = "held";           // in leases: the files that slurmstepd locks
inline constexpr const char* kShared = "shared";       // beside users' stores: the admin's
inline constexpr const char* kEvictionLock = ".room";  // in locks

/// The object that a hidden folder belongs to; "" for any other name.
std::string object_of(const std::string& entry);

std::filesystem::path hidden(const std::filesystem::path& objects, std::string_view prefix,
                             const std::string& name);

/// Records how many bytes an incoming folder will hold.
void write_reserved(FileSystem& system, const std::filesystem::path& incoming, std::uint64_t bytes);
/// The number that was recorded; 0 if there is none.
std::uint64_t read_reserved(FileSystem& system, const std::filesystem::path& incoming);

/// True if the path is a folder. A link to a folder is not one: it may lead where its owner has no access.
bool is_folder(FileSystem& system, const std::filesystem::path& path);

/// True for a job's folder in the folder of the jobs, and for one that is being removed.
bool is_jobs_entry(const std::string& name);

/// Files and folders that are not part of a store's layout, which a user has copied there. Paths below the store.
std::vector<std::filesystem::path> foreign_entries(FileSystem& system, const std::filesystem::path& store);

/// Makes the files and folders in an incoming folder writable again.
void unseal(FileSystem& system, const std::filesystem::path& folder);

/// Gives a file that a step keeps locked a second name in an object's folder of leases. The name is the
/// file's own; if it is taken (other users can take it in the shared store), "-" and random digits are added.
/// Throws Error if nobody holds the file, NoLease if it cannot be linked there.
void link_lease(FileSystem& system, const std::filesystem::path& held_file,
                const std::filesystem::path& leases);

/// The step of a lease with this name.
std::string step_of(const std::string& lease);

}  // namespace lockstep::cache
