// Writes output that a user requested by name (--out FILE). The name may be that of a regular file or of
// something else.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace lockstep {

/// Replaces a regular file as a whole, as write_file_atomically() does, or makes it. Follows symbolic links:
/// replaces or makes the target and keeps the link. Writes into the existing file if it is not regular (a
/// pipe, /dev/null), if this process has it open under that name (/dev/stdout, /dev/fd/3), or if standard
/// output goes to it: replacing it would lose its content and what is printed later. Throws Error naming the
/// path.
void write_output(const std::filesystem::path& path, std::string_view content);
/// The same with the content that `write` writes to the descriptor, for one that does not fit in memory.
void write_output(const std::filesystem::path& path, const std::function<void(int)>& write);

}  // namespace lockstep
