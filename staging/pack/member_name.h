// Splits the path of a file into a sample's key and a part's kind, as WebDataset does: the key is the path up
// to the first dot of the file name, and the kind is the rest. Files with the same key are parts of one
// sample.
//
// Threads: safe from any.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace lockstep::pack {

struct MemberName {
  std::string_view key;
  std::string_view kind;
};

/// "a/cat.seg.png" has the key "a/cat" and the kind "seg.png", "a/.png" the key "a/". A path in which WebDataset finds no
/// key, such as "a/cat", ".png" and "a.b/.png", is all key, without a kind. If the first dot and what follows it are only
/// dots, the kind includes it: "end" and "end." are two files of the sample "end".
MemberName split_member_name(std::string_view path);

/// ASCII letters in lower case, in any locale: "JPG" is the kind "jpg", as in WebDataset.
std::string lower_case(std::string_view text);

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends);

/// The reverse of split_member_name().
std::string join_member_name(std::string_view key, std::string_view kind);

/// Why a name must not be packed or unpacked ("is an absolute path", ...); "" if it is safe.
std::string_view unsafe_member_name(std::string_view path);

/// The same for a kind, which must not name a file in another folder.
std::string_view unsafe_kind(std::string_view kind);

// Files that operating systems, file managers and people leave beside data. They are not samples.

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
