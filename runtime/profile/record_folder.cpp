#include "runtime/profile/record_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <system_error>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"

namespace lockstep::profile {
namespace {

namespace fs = std::filesystem;

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("cannot make the folder {}: {}", folder.string(), error.message());
}

// XDG_RUNTIME_DIR often comes from a login node's environment and does not exist on this node.
fs::path runtime_folder() {
  if (const auto folder = environment::get("XDG_RUNTIME_DIR");
      folder && ::access(folder->c_str(), W_OK | X_OK) == 0) {
    return fs::path(*folder) / "lockstep";
  }
  // Any user can create this name in /dev/shm, so use it only if it belongs to this user.
  const std::string folder = fmt::format("/dev/shm/lockstep-{}", ::geteuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail_errno("cannot make the folder {}", folder);
  struct stat status = {};
  if (::lstat(folder.c_str(), &status) != 0) fail_errno("cannot read the folder {}", folder);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
    fail("{} is not a folder of this user: set LOCKSTEP_RECORD to one", folder);
  }
  return folder;
}

}  // namespace

std::string record_name(int rank) {
  return fmt::format("rank-{:06}.record", rank);
}

std::uint64_t local_job_id() {
  return static_cast<std::uint64_t>(::getppid());
}

fs::path make_record_folder(const record::Identity& identity) {
  if (const auto folder = environment::get("LOCKSTEP_RECORD")) {
    make_folders(*folder);
    return *folder;
  }
  const fs::path own = runtime_folder() / "records" / fmt::format("{}.{}", identity.job_id, identity.step_id);
  make_folders(own);
  return own;
}

void check_report_folder(const fs::path& folder) {
  make_folders(folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    fail_errno("cannot write to the folder {}", folder.string());
}

void copy_record(const fs::path& record, const record::Identity& identity, const fs::path& folder) {
  make_folders(folder);
  write_file_atomically(folder / record_name(identity.rank), read_text_file(record), 0640);
  const fs::path staging = record.parent_path() / "staging.json";
  if (identity.local_rank != 0 || !fs::exists(staging)) return;
  write_file_atomically(folder / fmt::format("staging-{}.json", identity.node), read_text_file(staging),
                        0640);
}

}  // namespace lockstep::profile
