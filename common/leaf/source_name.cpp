#include "common/leaf/source_name.h"

#include <filesystem>

namespace lockstep {

namespace fs = std::filesystem;

bool is_pattern(const std::string& source) {
  return fs::path(source).filename().string().find_first_of("*?[{") != std::string::npos;
}

std::string entry_name(const std::string& source) {
  fs::path path(source);
  if (!path.has_filename() || is_pattern(source)) path = path.parent_path();
  return path.filename().string();
}

}  // namespace lockstep
