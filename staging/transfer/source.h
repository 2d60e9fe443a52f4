// What a user names as a source, and which object of the cache is its copy.
//
// Threads: safe from any.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/transfer/hang_watch.h"

namespace lockstep::transfer {

/// What a name stands for: a folder, files in one folder, a pack or some of its shards.
struct Source {
  std::string given;                         ///< as the user wrote it
  std::filesystem::path folder;              ///< without symbolic links
  std::vector<std::filesystem::path> paths;  ///< what the name stands for, one by one
  std::vector<std::string> shards;  ///< names of the chosen files, sorted; empty for all of the folder
  bool one_file = false;            ///< the user named one file

  std::filesystem::path index_file() const;
};

/// The paths that a pattern stands for: braces ("a-{00..31}.tar", "{train,test}/x.tar") must all exist, "*",
/// "?" and "[…]" must match something. A name without any of these, or that exists as it is written, stands
/// for itself.
std::vector<std::filesystem::path> expand_pattern(const std::string& pattern);

/// Finds the folder. Reads nothing in it. Throws Error where nothing is there, or files are of several
/// folders.
Source resolve_source(const std::string& given);

/// The state of a pack's index file: while it is the same, so is what the pack claims to hold.
struct Identity {
  struct stat status {};
  pack::Digest index{};  ///< the index's own checksum
};

/// Two small reads at the source; nothing where it is no pack. Throws Error where it cannot be read.
std::optional<Identity> identify(const Source& source, HangWatch& watch = HangWatch::none());

/// True while neither size, time, inode nor checksum differs.
bool same(const Identity& a, const Identity& b);

/// The object's name: 32 hex digits of where the source is and what it is (path, size, time, inode,
/// checksum).
std::string object_name(const Source& source, const Identity& identity);

}  // namespace lockstep::transfer
