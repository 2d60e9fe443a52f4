// Checks the length of an HDF5 file against its header, without libhdf5.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::pack {

/// Throws Error if the file is not an HDF5 file or is shorter than its header says.
void check_hdf5(const std::filesystem::path& file);

/// The same for bytes that `read_some` returns: up to `bytes` at `offset`, fewer at the end. Returns the
/// length in the header, or nullopt if only libhdf5 can tell.
std::optional<std::uint64_t> check_hdf5(
    std::uint64_t size, const std::function<std::string(std::uint64_t offset, std::size_t bytes)>& read_some,
    const std::string& name);

/// Throws Error if a program that was killed, or that still writes, has the file open.
void refuse_open_hdf5(const std::filesystem::path& file);

}  // namespace lockstep::pack
