// Checks of the libraries that a training program loads on this node. They are looked up as the loader does and read as
// files, but not loaded.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>

#include "plugin/doctor/finding.h"

namespace lockstep::doctor {

/// "program", "libtorch", "nccl" and "blas": of a program or library, or, if `program` is empty, of the system's
/// LibTorch. ldd looks for the libraries, so LD_LIBRARY_PATH counts.
void check_libraries(const std::filesystem::path& program, Report& report);

/// The version of a LibTorch: from its file's name, or from the files that a wheel or an archive has beside it; "" if
/// it has none.
std::string torch_version(const std::filesystem::path& library);

/// The version of an NCCL: from its file's name, or from its content; "" if it has none.
std::string nccl_version(const std::filesystem::path& library);

}  // namespace lockstep::doctor
