// How long an HDF5 file must be, by its own first bytes; without the library.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

namespace lockstep::pack {

/// Throws Error where the file is no HDF5 file or shorter than it says.
void check_hdf5(const std::filesystem::path& file);

}  // namespace lockstep::pack
