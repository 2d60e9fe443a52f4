#include "staging/tool/nodes_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

fs::path key_path() {
  if (const auto config = environment::get("XDG_CONFIG_HOME"))
    return fs::path(*config) / "lockstep/nodes.key";
  if (const auto home = environment::get("HOME")) return fs::path(*home) / ".config/lockstep/nodes.key";
  fail_usage(
      "nodes that put together need a key: --key-file or LOCKSTEP_RENDEZVOUS_KEY, since HOME is not set");
}

std::string new_key() {
  std::array<std::uint8_t, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail_errno("cannot get random bytes for a key");
  return fmt::format("{:02x}\n", fmt::join(bytes, ""));
}

// Whole under its name at once, and the first one that anybody made stays.
void make(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) fail("cannot make the folder {}: {}", path.parent_path().string(), error.message());
  std::string temporary = path.string() + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // 0600
  if (!fd) fail_errno("cannot make {}", temporary);
  int made = 0;
  try {
    write_all(fd.get(), new_key(), temporary);
    if (::link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) made = errno;
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  ::unlink(temporary.c_str());
  if (made != 0) fail("cannot make {}: {}", path.string(), std::generic_category().message(made));
}

}  // namespace

std::string own_nodes_key() {
  const fs::path path = key_path();
  if (!fs::exists(path)) make(path);
  const UniqueFd fd = open_file(path, O_RDONLY);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot read {}", path.string());
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    fail("{} can be read or written by others: remove it, and a new one is made", path.string());
  }
  std::string key = read_text_file(path);
  while (!key.empty() && key.back() == '\n') key.pop_back();
  if (key.empty()) fail("{} is empty: remove it, and a new one is made", path.string());
  return key;
}

}  // namespace lockstep::transfer
