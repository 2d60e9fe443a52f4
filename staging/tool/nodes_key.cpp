#include "staging/tool/nodes_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/random.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeyBytes = 32;

fs::path key_path() {
  if (const auto config = environment::get("XDG_CONFIG_HOME"))
    return fs::path(*config) / "lockstep/nodes.key";
  if (const auto home = environment::get("HOME")) return fs::path(*home) / ".config/lockstep/nodes.key";
  fail_usage("--nodes needs a key, and HOME is not set: give --key-file or set LOCKSTEP_RENDEZVOUS_KEY");
}

// The file gets its name only when it is complete. If several processes make it at once, the first one stays.
void make(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) fail("cannot make the folder {}: {}", path.parent_path().string(), error.message());
  std::string temporary = path.string() + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // 0600
  if (!fd) fail_errno("cannot make {}", temporary);
  int made = 0;
  try {
    write_all(fd.get(), random_hex(kKeyBytes) + "\n", temporary);
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
    fail("other users can read or write {}: remove it, and the next call makes a new one", path.string());
  }
  std::string key = read_text_file(path);
  while (!key.empty() && key.back() == '\n') key.pop_back();
  if (key.empty()) fail("{} is empty: remove it, and the next call makes a new one", path.string());
  return key;
}

}  // namespace lockstep::transfer
