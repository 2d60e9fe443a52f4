#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "plugin/spank/contexts/context.h"
#include "plugin/spank/process/folder.h"
#include "plugin/spank/process/process.h"
#include "plugin/spank/process/report.h"
#include "plugin/spank/process/step_folders.h"

namespace lockstep::spank::job_script {
namespace {

// slurmd drains a node whose epilog takes too long.
constexpr std::chrono::seconds kTimeout{30};

// Removes the job's folder, and copies that are unfinished and that no job has continued for a day. Runs as the user, who
// owns all of it. Complete copies stay in the cache.
void remove_job_folder(const std::string& cache, uid_t uid, gid_t gid, const std::string& job) {
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
    if (!found) return;
    Command recover;
    recover.arguments = {helper_program(invocation().config.helpers, "lockstep-stage"), "recover", "--cache",
                         user};
    run(recover);
  });
}

// Works on a folder of root's, if there is one.
template <typename Work>
void clean_up(const std::string& path, const Work& work) {
  try {
    if (::access(path.c_str(), F_OK) == 0) work(Folder::open_root(path, false));
  } catch (const Error& error) {
    log(error.what());
  }
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
  for (const std::string& cache : invocation().config.caches) remove_job_folder(cache, uid, gid, job);
  for (const std::string& links : invocation().config.all_links) {
    clean_up(links, [&](const Folder& folder) { clean_up_links(folder, job); });
  }
  // Records stay for a while after their job's end, so that the exporter still reads the last values.
  clean_up(invocation().config.records, [&](const Folder& folder) {
    clean_up_records(folder, uid, job, invocation().config.keep_records);
  });
}

}  // namespace lockstep::spank::job_script
