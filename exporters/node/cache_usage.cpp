#include "exporters/node/cache_usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/leaf/text.h"
#include "exporters/node/untrusted_file.h"

namespace lockstep::exporter {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = 4 << 20;
constexpr std::size_t kMaxUsers = 1000;
constexpr std::size_t kMaxReason = 200;
constexpr int kVersion = 1;

void parse(const std::string& text, CacheUsage& usage) {
  const nlohmann::json json = nlohmann::json::parse(text);
  const int version = json.at("version").get<int>();
  if (version != kVersion) fail("it has version {}, and this exporter knows version {}", version, kVersion);
  CacheUsage read;
  std::map<std::string, CacheUser> users;  // two user ids may have one name, and series must differ
  for (const nlohmann::json& user : json.at("users")) {
    if (users.size() == kMaxUsers) break;
    const auto name = user.at("user").get<std::string>();
    CacheUser& sum = users[name];
    sum.name = name;
    sum.bytes += user.at("bytes").get<std::uint64_t>();
    sum.objects += user.at("objects").get<std::uint64_t>();
  }
  for (auto& [name, user] : users) read.users.push_back(std::move(user));
  usage.bytes = json.at("total").get<std::uint64_t>();
  usage.shared_bytes = json.at("shared").get<std::uint64_t>();
  usage.written = json.at("written").get<std::uint64_t>();
  usage.users = std::move(read.users);
}

// The cache's folder is root's. Where it is not, its owner could have written anything.
void read_usage(const fs::path& file, CacheUsage& usage) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return;
  if (!fd) fail_errno("cannot open {}", file.string());
  struct stat status = {};
  const std::string text = read_untrusted_file(fd, kMaxBytes, file.string());
  if (::fstat(fd.get(), &status) != 0 || (status.st_uid != 0 && status.st_uid != ::geteuid()))
    fail("{} is not a file of root", file.string());
  try {
    parse(text, usage);
  } catch (const std::exception& error) {
    fail("{} is not what lockstep-stage gc writes: {}", file.string(), printable(error.what(), kMaxReason));
  }
}

}  // namespace

const CacheUsage& CacheUsageMeter::usage(std::chrono::steady_clock::time_point now) {
  if (looked_up_ && now - *looked_up_ < keep_) return usage_;
  looked_up_ = now;
  usage_ = {};
  error_.clear();
  struct statvfs status = {};
  if (cache_.empty() || ::statvfs(cache_.c_str(), &status) != 0) return usage_;
  usage_.file_system_bytes = std::uint64_t{status.f_blocks} * status.f_frsize;
  usage_.available_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  try {
    read_usage(cache_ / "usage.json", usage_);
  } catch (const Error& error) {
    ++errors_;
    error_ = error.what();
  }
  return usage_;
}

}  // namespace lockstep::exporter
