// Files that operating systems, file managers and people leave beside data. They are not samples.
//
// Threads: safe from any.
#pragma once

#include <string_view>

namespace lockstep::pack {

/// Whether a program left this file: AppleDouble files ("._NAME") and folders of macOS, Windows' thumbnails, version
/// control, marker files of Hadoop. Judged by every component of the path.
bool is_system_file(std::string_view path);

/// Whether a file describes a data set ("README.md", "LICENSE") and is not data itself, judged by its name.
bool is_about_data(std::string_view path);

/// Either of them.
inline bool is_stray(std::string_view path) {
  return is_system_file(path) || is_about_data(path);
}

/// Which members of tar files can be samples.
enum class Members {
  with_ending,  ///< those that WebDataset finds, whose names have an ending
  all,          ///< also those without an ending, in shards that have no others
};

/// Whether a member of a tar file belongs to no sample. As in WebDataset these are names without a kind and names
/// that begin with "__…__"; here also those of is_system_file().
bool is_left_out(std::string_view member, Members members);

}  // namespace lockstep::pack
