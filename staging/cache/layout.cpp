#include "staging/cache/layout.h"

#include <fcntl.h>

#include "common/error.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

std::string object_of(const std::string& entry) {
  for (const std::string_view prefix : {kIncoming, kRemoved}) {
    if (entry.starts_with(prefix)) return entry.substr(prefix.size());
  }
  return {};
}

fs::path hidden(const fs::path& objects, std::string_view prefix, const std::string& name) {
  return objects / (std::string(prefix) + name);
}

void write_reserved(FileSystem& system, const fs::path& incoming, std::uint64_t bytes) {
  const fs::path file = incoming / kReserved;
  const UniqueFd fd = system.open(file, O_WRONLY | O_CREAT | O_NOFOLLOW, 0600);
  // Always as long, so that it can be written over in one go.
  const std::string text = fmt::format("{:20}\n", bytes);
  system.write_at(fd.get(), std::as_bytes(std::span(text)), 0, file);
}

void unseal(FileSystem& system, const fs::path& folder) {
  for (const std::string& name : system.list(folder)) {
    const fs::path path = folder / name;
    const auto status = system.status(path);
    if (!status || S_ISLNK(status->st_mode)) continue;
    const bool is_folder = S_ISDIR(status->st_mode);
    system.change_mode(path, is_folder ? 0700 : 0600);
    if (is_folder) unseal(system, path);
  }
}

}  // namespace lockstep::cache
