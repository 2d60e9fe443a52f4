#include "staging/cache/layout.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "common/error.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

bool is_folder(FileSystem& system, const fs::path& path) {
  const auto status = system.status(path);
  return status && S_ISDIR(status->st_mode);
}

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
  // Always the same length, so that one write replaces it.
  const std::string text = fmt::format("{:20}\n", bytes);
  system.write_at(fd.get(), std::as_bytes(std::span(text)), 0, file);
}

std::uint64_t read_reserved(FileSystem& system, const fs::path& incoming) {
  const fs::path file = incoming / kReserved;
  const std::optional<UniqueFd> fd = system.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return 0;
  char text[20];
  const std::size_t got = system.read_at(fd->get(), std::as_writable_bytes(std::span(text)), 0, file);
  const char* begin = text;
  while (begin != text + got && *begin == ' ') ++begin;
  std::uint64_t bytes = 0;
  std::from_chars(begin, text + got, bytes);
  return bytes;
}

bool is_jobs_entry(const std::string& name) {
  return !name.starts_with('.') || name.starts_with(kRemoved);
}

std::vector<fs::path> foreign_entries(FileSystem& system, const fs::path& store) {
  std::vector<fs::path> foreign;
  const auto look = [&](const fs::path& folder, const auto& belongs) {
    if (!is_folder(system, store / folder)) return;
    for (const std::string& name :
         system.list_if_there(store / folder).value_or(std::vector<std::string>())) {
      if (!belongs(name)) foreign.push_back(folder / name);
    }
  };
  const auto one_of = [](std::initializer_list<std::string_view> names) {
    return [names](const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
  };
  look("", one_of({"objects", "locks", "leases", "jobs", "bandwidth"}));
  look("jobs", is_jobs_entry);
  for (const std::string& name :
       system.list_if_there(store / "objects").value_or(std::vector<std::string>())) {
    if (object_of(name).empty()) look(fs::path("objects") / name, one_of({kDescription, "files", "journal"}));
  }
  return foreign;
}

void unseal(FileSystem& system, const fs::path& folder) {
  for (const std::string& name : system.list(folder)) {
    const fs::path path = folder / name;
    const auto status = system.status(path);
    if (!status || S_ISLNK(status->st_mode)) continue;
    const bool nested = S_ISDIR(status->st_mode);
    system.change_mode(path, nested ? 0700 : 0600);
    if (nested) unseal(system, path);
  }
}

}  // namespace lockstep::cache
