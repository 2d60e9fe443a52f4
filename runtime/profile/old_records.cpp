#include "runtime/profile/old_records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <system_error>
#include <vector>

#include "common/files.h"
#include "common/leaf/text.h"
#include "exporters/record/reader.h"

namespace lockstep::profile {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

// An open folder of this user. It is used by its descriptor, so that no other process can replace it by a
// link.
class OwnFolder {
 public:
  static std::optional<OwnFolder> open(int parent, const std::string& name) {
    UniqueFd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status = {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || status.st_uid != ::geteuid()) return {};
    return OwnFolder(std::move(fd), Clock::from_time_t(status.st_mtime));
  }

  int fd() const { return fd_.get(); }
  Clock::time_point changed() const { return changed_; }
  fs::path path() const { return fmt::format("/proc/self/fd/{}", fd_.get()); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(path(), error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    return names;
  }

 private:
  OwnFolder(UniqueFd fd, Clock::time_point changed) : fd_(std::move(fd)), changed_(changed) {}

  UniqueFd fd_;
  Clock::time_point changed_;
};

bool is_job_and_step(std::string_view name) {
  const std::size_t dot = name.find('.');
  return dot != std::string_view::npos && is_number(name.substr(0, dot)) && is_number(name.substr(dot + 1));
}

Clock::time_point time_of(std::int64_t unix_ns) {
  return Clock::time_point(std::chrono::nanoseconds(unix_ns));
}

// Whether no process writes to this record, and none has since `then`. A record that cannot be read may still
// be written. A record without its final name belongs to a rank that was killed while it made the record. Profiles
// do not count.
bool is_over(const fs::path& file, Clock::time_point then) {
  const std::string name = file.filename().string();
  if (name.starts_with(".rank-") || name.starts_with("trace") || name == "operators.txt" ||
      name == "profile.json") {
    return true;
  }
  if (fs::path(file.filename()).extension() != ".record") return false;
  try {
    const record::Snapshot rank = record::Reader(file).read(0);
    return !rank.alive && time_of(std::max(rank.last_unix_ns(), rank.finished_unix_ns)) < then;
  } catch (const std::exception&) {  // another version, or not a record
    return false;
  }
}

}  // namespace

void remove_old_records(const fs::path& records, const std::string& keep) {
  const Clock::time_point then = Clock::now() - kRecordsKept;
  const auto jobs = OwnFolder::open(AT_FDCWD, records.string());
  if (!jobs) return;
  for (const std::string& name : jobs->names()) {
    if (name == keep || !is_job_and_step(name)) continue;
    const auto job = OwnFolder::open(jobs->fd(), name);
    if (!job || job->changed() > then) continue;
    const std::vector<std::string> files = job->names();
    if (!std::all_of(files.begin(), files.end(),
                     [&](const std::string& file) { return is_over(job->path() / file, then); })) {
      continue;
    }
    for (const std::string& file : files) ::unlinkat(job->fd(), file.c_str(), 0);
    ::unlinkat(jobs->fd(), name.c_str(), AT_REMOVEDIR);
  }
}

}  // namespace lockstep::profile
