// Checks the files of a source against the format's own tables.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "staging/pack/format.h"

namespace lockstep::pack {

/// Checks that the files in `folder` (the source or a copy) are as long as the format's own tables say. Reads
/// tables, but no payload. Throws Error naming the files, for example a .bin that is shorter than its .idx
/// says.
void check_complete(const std::filesystem::path& folder, const Contents& contents);

}  // namespace lockstep::pack
