#include "plugin/spank/process/step_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <string_view>

#include "common/leaf/error.h"
#include "plugin/spank/process/report.h"

namespace lockstep::spank {
namespace {

constexpr std::string_view kRunning = ".running-";
constexpr std::string_view kEnded = ".ended-";

std::string running(const std::string& step) {
  return std::string(kRunning) + step;
}

std::string ended(const std::string& step) {
  return std::string(kEnded) + step;
}

std::string job_of(const std::string& step) {
  return step.substr(0, step.find('.'));
}

// Whether a slurmstepd holds the mark. If not, `fd` has an exclusive lock on it.
bool is_held(const Folder& parent, const std::string& step, UniqueFd& fd) {
  fd = UniqueFd(::openat(parent.fd(), running(step).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

struct Steps {
  std::set<std::string> all;           ///< that have a folder or a mark
  std::set<std::string> running_jobs;  ///< that have a slurmstepd
  bool marked = false;                 ///< one of them has a mark
};

Steps steps_in(const Folder& parent) {
  Steps steps;
  for (std::string name : parent.names()) {
    const bool is_running = name.starts_with(kRunning);
    for (const std::string_view mark : {kRunning, kEnded}) {
      if (!name.starts_with(mark)) continue;
      name.erase(0, mark.size());
      steps.marked = true;
    }
    UniqueFd fd;
    if (is_running && is_held(parent, name, fd)) steps.running_jobs.insert(job_of(name));
    steps.all.insert(name);
  }
  return steps;
}

// A step that began with an older version of the plugin has no mark, so only its job's end makes one.
void mark_ended(const Folder& parent, const std::string& step, bool of_ended_job) {
  UniqueFd lock;  // a step that begins under this name waits for it
  if (is_held(parent, step, lock) && !of_ended_job) return;
  if (lock) {
    ::utimensat(parent.fd(), running(step).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    ::renameat(parent.fd(), running(step).c_str(), parent.fd(), ended(step).c_str());
  } else if (of_ended_job) {
    const UniqueFd made(::openat(parent.fd(), ended(step).c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
}

// The mark of a step that ended `seconds` ago, with an exclusive lock on it: a step that begins under this name waits until the
// lock is gone. Empty if there is none, or if such a step has begun. At its own job's end no step begins, and a slurmstepd
// that has not ended yet does not count.
UniqueFd lock_old(const Folder& parent, const std::string& step, int seconds, bool of_ended_job) {
  UniqueFd mark(::openat(parent.fd(), ended(step).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat about {};
  const bool usable = mark && (::flock(mark.get(), LOCK_EX | LOCK_NB) == 0 || of_ended_job) &&
                      parent.is_name_of(ended(step), mark.get()) && ::fstat(mark.get(), &about) == 0;
  // From Linux 6.13 on a file's time can be a tick ahead of time(), so it may seem to end in the next second.
  const std::time_t age = std::max<std::time_t>(0, std::time(nullptr) - about.st_mtime);
  if (!usable || age < seconds) mark.reset();
  return mark;
}

// A folder that cannot be removed, or that another job's end has just removed, must not stop the others.
template <typename Work>
void each_folder(const Folder& parent, const Work& work) {
  for (const std::string& name : parent.names()) {
    if (name.starts_with('.')) continue;
    try {
      work(name, parent.open(name));
    } catch (const Error& error) {
      log(error.what());
    }
  }
}

void remove_old(const Folder& of_user, const std::string& step, int seconds, bool of_ended_job) {
  const UniqueFd mark = lock_old(of_user, step, seconds, of_ended_job);
  if (!mark) return;
  try {
    of_user.remove(step);
    if (of_user.is_name_of(ended(step), mark.get())) of_user.remove(ended(step));
  } catch (const Error& error) {
    log(error.what());
  }
}

}  // namespace

UniqueFd mark_running(const Folder& parent, const std::string& step) {
  ::renameat(parent.fd(), ended(step).c_str(), parent.fd(), running(step).c_str());
  UniqueFd fd = parent.lock_shared(running(step));
  ::unlinkat(parent.fd(), ended(step).c_str(), 0);  // made between these two calls
  return fd;
}

void clean_up_records(const Folder& records, uid_t uid, const std::string& job, int keep) {
  each_folder(records, [&](const std::string& user, const Folder& of_user) {
    const Steps steps = steps_in(of_user);
    for (const std::string& step : steps.all) {
      const bool of_ended_job = user == std::to_string(uid) && job_of(step) == job;
      if (!of_ended_job && steps.running_jobs.contains(job_of(step))) {
        // Taken for ended when the job had no step here: the time counts from its next pause.
        ::utimensat(of_user.fd(), ended(step).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
        continue;
      }
      mark_ended(of_user, step, of_ended_job);
      remove_old(of_user, step, keep, of_ended_job);
    }
  });
}

void clean_up_links(const Folder& links, const std::string& job) {
  if (::faccessat(links.fd(), "jobs", F_OK, AT_SYMLINK_NOFOLLOW) != 0) return;
  const Folder jobs = links.open("jobs");
  each_folder(jobs, [&](const std::string& name, const Folder& of_job) {
    const Steps steps = steps_in(of_job);
    if (name == job || (steps.marked && steps.running_jobs.empty())) jobs.remove(name);
  });
}

}  // namespace lockstep::spank
