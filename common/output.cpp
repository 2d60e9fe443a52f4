#include "common/output.h"

#include <fcntl.h>

#include <system_error>

#include "common/files.h"

namespace lockstep {

void write_output(const std::filesystem::path& path, std::string_view content) {
  std::error_code none;
  if (std::filesystem::is_other(std::filesystem::status(path, none))) {
    const UniqueFd fd = open_file(path, O_WRONLY);
    return write_all(fd.get(), content, path);
  }
  const bool link = std::filesystem::is_symlink(std::filesystem::symlink_status(path, none));
  write_file_atomically(link ? std::filesystem::weakly_canonical(path) : path, content);
}

}  // namespace lockstep
