#include "runtime/profile/record_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "exporters/record/reader.h"

namespace lockstep::profile {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecordExtension = ".record";

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("cannot make the folder {}: {}", folder.string(), error.message());
}

// XDG_RUNTIME_DIR often comes with the environment of a login node and does not exist on this one.
fs::path runtime_folder() {
  if (const auto given = environment::get("XDG_RUNTIME_DIR");
      given && ::access(given->c_str(), W_OK | X_OK) == 0) {
    return fs::path(*given) / "lockstep";
  }
  // Anybody can make this name before us in a folder like /dev/shm, so it counts only when it is ours.
  const std::string folder = fmt::format("/dev/shm/lockstep-{}", ::geteuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail_errno("cannot make the folder {}", folder);
  struct stat status = {};
  if (::lstat(folder.c_str(), &status) != 0) fail_errno("cannot read the folder {}", folder);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
    fail("{} is not a folder of this user; set LOCKSTEP_RECORD to one", folder);
  }
  return folder;
}

// Long enough to look at what a job did; as long as the plugin keeps them.
constexpr std::chrono::hours kKept{1};

std::chrono::system_clock::time_point time_of(std::int64_t unix_ns) {
  return std::chrono::system_clock::time_point(std::chrono::nanoseconds(unix_ns));
}

// Whether nobody writes to these records, and nobody has for an hour. One that cannot be read may be alive.
bool is_long_over(const fs::path& job) {
  const auto now = std::chrono::system_clock::now();
  if (fs::last_write_time(job) > fs::file_time_type::clock::now() - kKept) return false;
  for (const fs::directory_entry& file : fs::directory_iterator(job)) {
    if (file.path().extension() != kRecordExtension) continue;
    const record::Snapshot rank = record::Reader(file.path()).read(0);
    if (rank.alive || time_of(std::max(rank.last_unix_ns(), rank.finished_unix_ns)) > now - kKept)
      return false;
  }
  return true;
}

// Records lie in memory, and where there is no plugin nobody else removes them. Several jobs may do so at
// once.
void remove_old(const fs::path& records) {
  std::error_code error;
  for (const fs::directory_entry& job : fs::directory_iterator(records, error)) {
    try {
      if (job.is_directory() && !job.is_symlink() && is_long_over(job)) fs::remove_all(job, error);
    } catch (const std::exception&) {  // another job was faster, or it is not a record of this version
      continue;
    }
  }
}

}  // namespace

std::string record_name(int rank) {
  return fmt::format("rank-{:06}{}", rank, kRecordExtension);
}

std::uint64_t local_job_id() {
  return static_cast<std::uint64_t>(::getppid());
}

fs::path make_record_folder(const record::Identity& identity) {
  if (const auto given = environment::get("LOCKSTEP_RECORD")) {
    make_folders(*given);
    return *given;
  }
  const fs::path records = runtime_folder() / "records";
  if (identity.local_rank == 0) remove_old(records);
  fs::path folder = records / fmt::format("{}.{}", identity.job_id, identity.step_id);
  make_folders(folder);
  return folder;
}

void leave_copy(const fs::path& record, const record::Identity& identity, const fs::path& folder) {
  make_folders(folder);
  write_file_atomically(folder / record_name(identity.rank), read_text_file(record), 0640);
  const fs::path staging = record.parent_path() / "staging.json";
  if (identity.local_rank != 0 || !fs::exists(staging)) return;
  write_file_atomically(folder / fmt::format("staging-{}.json", identity.node), read_text_file(staging),
                        0640);
}

}  // namespace lockstep::profile
