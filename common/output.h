// Writing what a user asked for by name (--out FILE), which may be more than a plain file.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string_view>

namespace lockstep {

/// Replaces the file as a whole, as write_file_atomically() does, or makes it. Of a symbolic link the target
/// is replaced or made, and the link stays. What is no plain file (a pipe, /dev/null) is written into; so is
/// what this process has open under that name (/dev/stdout, /dev/fd/3), and the file that its standard output
/// goes to: replacing that one would lose what is in it and what is printed later. Throws Error naming the
/// path.
void write_output(const std::filesystem::path& path, std::string_view content);

}  // namespace lockstep
