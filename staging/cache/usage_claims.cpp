#include "staging/cache/usage_claims.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <thread>

#include "common/error.h"
#include "common/leaf/number.h"
#include "staging/cache/usage.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

constexpr auto kLockTimeout = std::chrono::seconds(2);
constexpr auto kPollInterval = std::chrono::milliseconds(5);
constexpr std::size_t kDigits = 20;

void make_file(int folder, const char* name, uid_t owner, const fs::path& path) {
  const UniqueFd fd(::openat(folder, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
  if (!fd) fail_errno("cannot make {}", path.string());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", path.string());
  if (!S_ISREG(status.st_mode)) fail("{} is not a file", path.string());
  // Through the descriptor, in a folder where only root may make names.
  if (status.st_uid != owner && ::fchown(fd.get(), owner, static_cast<gid_t>(-1)) != 0)
    fail_errno("cannot give {} to user {}", path.string(), owner);
  if (::fchmod(fd.get(), 0644) != 0) fail_errno("cannot change the mode of {}", path.string());
}

}  // namespace

UsageClaims::UsageClaims(fs::path folder, FileSystem& system) : folder_(std::move(folder)), system_(system) {
}

void UsageClaims::prepare(const fs::path& folder, uid_t user) {
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) fail_errno("cannot make {}", folder.string());
  const UniqueFd fd = open_file(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", folder.string());
  if (status.st_uid != ::geteuid()) fail("{} belongs to user {}; remove it", folder.string(), status.st_uid);
  if (::fchmod(fd.get(), 0755) != 0) fail_errno("cannot change the mode of {}", folder.string());
  make_file(fd.get(), "lock", ::geteuid(), folder / "lock");
  const std::string name = std::to_string(user);
  make_file(fd.get(), name.c_str(), user, folder / name);
}

bool UsageClaims::trusted() const {
  const auto status = system_.status(folder_);
  return status && S_ISDIR(status->st_mode) && (status->st_uid == 0 || status->st_uid == ::geteuid()) &&
         (status->st_mode & 022) == 0;
}

std::optional<UniqueFd> UsageClaims::lock() const {
  if (!trusted()) return {};
  const fs::path file = folder_ / "lock";
  std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return {};
  const auto end = std::chrono::steady_clock::now() + kLockTimeout;
  while (!system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, file)) {
    if (std::chrono::steady_clock::now() > end) return {};
    std::this_thread::sleep_for(kPollInterval);
  }
  return fd;
}

void UsageClaims::claim(std::uint64_t bytes) const {
  if (!trusted()) return;
  const fs::path file = folder_ / std::to_string(::geteuid());
  const std::optional<UniqueFd> fd = system_.open_if_there(file, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return;
  // Always the same length, so that one write replaces it.
  const std::string text = fmt::format("{:{}}\n", bytes, kDigits);
  system_.write_at(fd->get(), std::as_bytes(std::span(text)), 0, file);
}

std::uint64_t UsageClaims::claimed(uid_t user) const {
  const fs::path file = folder_ / std::to_string(user);
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return 0;
  if (!S_ISREG(status.st_mode) || status.st_uid != user) return 0;
  std::array<char, kDigits> text{};
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), 0);
  std::string_view number(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
  return to_number<std::uint64_t>(number.substr(0, number.find('\n'))).value_or(0);
}

std::uint64_t UsageClaims::claimed_by_others() const {
  std::uint64_t total = 0;
  if (!trusted()) return total;
  for (const std::string& name : system_.list(folder_)) {
    const std::optional<uid_t> user = to_number<uid_t>(name);
    if (!user || *user == ::geteuid()) continue;
    total = sum(total, claimed(*user));
  }
  return total;
}

}  // namespace lockstep::cache
