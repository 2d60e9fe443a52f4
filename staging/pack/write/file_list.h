// Which files a pack is made of, and in which order.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <istream>
#include <string>
#include <vector>

namespace lockstep::pack {

/// Regular files below `folder`, relative to it, in byte order of key and kind, so that parts of one sample
/// are neighbours and the order is the same everywhere. With filters: those of which the path or the file
/// name matches one (fnmatch). Throws Error naming what cannot be packed (links, devices, an empty folder).
std::vector<std::string> files_below(const std::filesystem::path& folder,
                                     const std::vector<std::string>& filters);

/// One relative path per line. Samples keep the order in which the list first names them, parts are sorted by
/// kind. Throws Error naming the line that is absolute, leaves the folder or comes twice.
std::vector<std::string> files_listed(std::istream& list, const std::vector<std::string>& filters);

}  // namespace lockstep::pack
