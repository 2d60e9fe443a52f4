// How a file's path becomes a sample's key and a part's kind, after WebDataset: the key is the path up to the
// first dot of the file name, the kind what follows it. Files that share a key are parts of one sample.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::pack {

struct MemberName {
  std::string_view key;
  std::string_view kind;
};

/// "a/cat.seg.png" is key "a/cat", kind "seg.png". A name without a dot, or with one only at its begin, is
/// all key. Where nothing but dots follows the first one, the kind has that one too, since "end" and "end."
/// are two files of the sample "end".
MemberName split_member_name(std::string_view path);

/// The path that was split.
std::string join_member_name(std::string_view key, std::string_view kind);

/// Why a name must not be packed or unpacked ("is an absolute path", ...), or "" for one that stays in its
/// folder.
std::string_view unsafe_member_name(std::string_view path);

/// The same for a kind, which must not lead out of its key's folder, or into another.
std::string_view unsafe_kind(std::string_view kind);

}  // namespace lockstep::pack
