// Lists the files to pack, in the order of the samples.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <istream>
#include <string>
#include <vector>

namespace lockstep::pack {

/// Files of member_name.h that are left out.
struct StrayFiles {
  std::size_t count = 0;
  std::string first;  ///< in byte order

  void add(const std::string& path) {
    if (count++ == 0 || path < first) first = path;
  }
};

/// "3 files left out that are not data, such as .DS_Store"
std::string describe(const StrayFiles& stray);

/// The regular files below `folder`, relative to it, in byte order of key and kind: parts of one sample are
/// neighbours, and the order is the same on every machine. With filters, only files whose path or name
/// matches one of them (fnmatch; as in a shell, "*" does not match a stray name that begins with a dot). Without filters,
/// stray files are left out and counted. Throws Error naming an entry that cannot be packed (a link, a device) or an
/// empty folder.
std::vector<std::string> files_below(const std::filesystem::path& folder,
                                     const std::vector<std::string>& filters, StrayFiles* stray = nullptr);

/// Reads one relative path per line. Samples keep the order in which the list first names them; parts are
/// sorted by kind. Throws Error naming a path that is absolute, leaves the folder or appears twice.
std::vector<std::string> files_listed(std::istream& list, const std::vector<std::string>& filters);

}  // namespace lockstep::pack
