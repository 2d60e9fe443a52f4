#include "common/leaf/source_name.h"

#include <algorithm>
#include <iterator>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// REPOSITORY for REPOSITORY/snapshots/REVISION beside REPOSITORY/blobs; other folders as they are.
fs::path with_blobs(const fs::path& source) {
  const fs::path repository = source.parent_path().parent_path();
  std::error_code error;
  if (source.parent_path().filename() != "snapshots" || !fs::is_directory(repository / "blobs", error))
    return source;
  return repository;
}

fs::path common_folder(const fs::path& a, const fs::path& b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  fs::path common;
  for (auto part = a.begin(); part != end; ++part) common /= *part;
  return common;
}

}  // namespace

bool is_pattern(const std::string& source) {
  return fs::path(source).filename().string().find_first_of("*?[{") != std::string::npos;
}

std::string entry_name(const std::string& source) {
  fs::path path(source);
  if (!path.has_filename() || is_pattern(source)) path = path.parent_path();
  return path.filename().string();
}

std::string why_not_followed(const fs::path& link, const fs::path& source) {
  const std::string name = link.string() + " is a symbolic link ";
  std::error_code error;
  const fs::path target = fs::canonical(link, error);
  if (error)
    return name + "that cannot be followed (" + error.message() + "): remove it, or restore what it leads to";
  const fs::path top = with_blobs(source);
  if (common_folder(top, target) == top) return {};
  const fs::path both = common_folder(source, target);
  const bool narrow = std::distance(both.begin(), both.end()) > 2;
  return name + "out of the folder, to " + target.string() + ": replace it with what it leads to" +
         (narrow ? ", or name the folder " + both.string() + ", which contains both" : "");
}

}  // namespace lockstep
