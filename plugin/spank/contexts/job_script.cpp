#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>

#include "plugin/spank/contexts/context.h"
#include "plugin/spank/contexts/invocation.h"
#include "plugin/spank/process/folder.h"
#include "plugin/spank/process/process.h"
#include "plugin/spank/process/report.h"

namespace lockstep::spank::job_script {
namespace {

// slurmd drains a node whose epilog takes too long.
constexpr std::chrono::seconds kTimeout{30};

// Removes the job's folder and, with `copies`, copies that are unfinished and that no job has continued for a day. Runs
// as the user, who owns all of it. Complete copies stay in the cache.
void remove_job_folder(const std::string& cache, uid_t uid, gid_t gid, const std::string& job, bool copies) {
  const std::string user = cache + "/" + std::to_string(uid);
  as_user(uid, gid, kTimeout, [&] {
    // In the child: the user may have mounted a file system there that never responds.
    if (::access(user.c_str(), F_OK) != 0) return;
    const auto has = [](const Folder& folder, const std::string& name) {
      return ::faccessat(folder.fd(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    };
    const Folder of_user = Folder::open_path(cache).open(std::to_string(uid));
    if (!has(of_user, "jobs")) return;
    const Folder jobs = of_user.open("jobs");
    bool found = false;
    for (const std::string& name : jobs.names()) {
      if (name != job && !name.starts_with(job + "-")) continue;  // JOB-RESTART: the job was queued again
      found = true;
      // If the removal is interrupted, no step must find half of the job's data. gc removes the rest.
      const std::string removed = ".removed-" + name;
      if (has(jobs, removed)) jobs.remove(removed);
      if (::renameat(jobs.fd(), name.c_str(), jobs.fd(), removed.c_str()) != 0)
        throw Error("cannot rename " + user + "/jobs/" + name + ": " + errno_text(errno));
      jobs.remove(removed);
    }
    if (!found || !copies) return;
    Command recover;
    recover.arguments = {helper_program(invocation().config.helpers, "lockstep-stage"), "recover", "--cache",
                         user};
    run(recover);
  });
}

// Records stay for a while after their job's end, so that the exporter still reads the last values.
void mark_ended(const Folder& of_user, const std::string& step) {
  const UniqueFd fd(::openat(of_user.fd(), (kEnded + step).c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
}

bool is_old(const Folder& of_user, const std::string& step, int seconds) {
  struct stat about {};
  return ::fstatat(of_user.fd(), (kEnded + step).c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 &&
         std::time(nullptr) - about.st_mtime >= seconds;
}

void clean_up_records(const Config& config, uid_t uid, const std::string& job) {
  if (::access(config.records.c_str(), F_OK) != 0) return;
  const Folder records = Folder::open_root(config.records, false);
  // A folder that cannot be removed, or that another job's end has just removed, must not stop the others.
  const auto each = [](const Folder& parent, const auto& work) {
    for (const std::string& name : parent.names()) {
      if (name.starts_with('.')) continue;
      try {
        work(name, parent.open(name));
      } catch (const Error& error) {
        log(error.what());
      }
    }
  };
  each(records, [&](const std::string& user, const Folder& of_user) {
    each(of_user, [&](const std::string& step, const Folder&) {
      if (user == std::to_string(uid) && step.starts_with(job + ".")) mark_ended(of_user, step);
      if (!is_old(of_user, step, config.keep_records)) return;
      of_user.remove(step);
      of_user.remove(kEnded + step);
    });
  });
}

}  // namespace

void epilog(spank_t spank, int argc, char** argv) {
  const char* const partition = std::getenv("SLURM_JOB_PARTITION");
  load_config(argc, argv, partition != nullptr ? partition : "");
  std::uint32_t id = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  if (spank_get_item(spank, S_JOB_ID, &id) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_GID, &gid) != ESPANK_SUCCESS) {
    return;
  }
  const std::string job = std::to_string(id);
  if (!invocation().config_error.empty()) log(invocation().config_error);  // then no cache is known
  for (const std::string& cache : invocation().config.caches) remove_job_folder(cache, uid, gid, job, true);
  for (const std::string& links : invocation().config.all_links) {
    if (::access((links + "/" + std::to_string(uid)).c_str(), F_OK) == 0)
      remove_job_folder(links, uid, gid, job, false);
  }
  try {
    clean_up_records(invocation().config, uid, job);
  } catch (const Error& error) {
    log(error.what());
  }
}

}  // namespace lockstep::spank::job_script
