// Writing what a user asked for by name (--out FILE), which may be more than a plain file.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string_view>

namespace lockstep {

/// Replaces the file as a whole, as write_file_atomically() does; but into a device or a pipe (/dev/stdout,
/// /dev/null) the content is written, and of a symbolic link the target is replaced. Throws Error naming the
/// path.
void write_output(const std::filesystem::path& path, std::string_view content);

}  // namespace lockstep
