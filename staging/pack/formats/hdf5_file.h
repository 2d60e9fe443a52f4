// How long an HDF5 file must be, by its own first bytes; without the library.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::pack {

/// Throws Error where the file is no HDF5 file or shorter than it says.
void check_hdf5(const std::filesystem::path& file);

/// The same of bytes that `read_some` gives: up to so many at an offset, fewer at the end. Returns the length
/// that the header says; nothing where only the library can tell.
std::optional<std::uint64_t> check_hdf5(
    std::uint64_t size, const std::function<std::string(std::uint64_t offset, std::size_t bytes)>& read_some,
    const std::string& name);

}  // namespace lockstep::pack
