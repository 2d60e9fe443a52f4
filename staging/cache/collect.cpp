#include "staging/cache/collect.h"

#include <fcntl.h>

#include <algorithm>
#include <set>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/layout.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

/// One call's work.
class Collector {
 public:
  Collector(Store& store, FileSystem& system, const CollectOptions& options)
      : store_(store), system_(system), options_(options) {}

  void remove_leftovers() {
    attempt([&] {
      for (const std::string& entry : system_.list(store_.folder() / "objects")) report_leftover(entry);
      if (!options_.dry_run) store_.recover(options_.abandoned);
    });
  }

  void remove_jobs() {
    const fs::path jobs = store_.folder() / "jobs";
    attempt([&] {
      const std::set<std::string> alive = jobs_alive();
      for (const std::string& job : system_.list_if_there(jobs).value_or(Names())) {
        attempt([&] {
          if (job.starts_with(kRemoved)) {
            remove_folder(
                jobs / job,
                {.what = "leftover", .name = "jobs/" + job, .source = "", .why = "left by a killed gc"});
          } else if (!job.starts_with('.') && !alive.contains(job.substr(0, job.find('-')))) {
            remove_job_folder(jobs, job);
          }
        });
      }
      remove_held_files();
    });
  }

  void remove_foreign() {
    attempt([&] {
      for (const fs::path& entry : foreign_entries(system_, store_.folder())) {
        const auto status = system_.status(store_.folder() / entry);
        // The time of the last change, which a user cannot set.
        const Time changed(std::chrono::seconds(status ? status->st_ctim.tv_sec : 0));
        if (!status || now() - changed < options_.abandoned) continue;
        attempt([&] {
          remove_folder(store_.folder() / entry, {.what = "leftover",
                                                  .name = entry.string(),
                                                  .source = "",
                                                  .why = "not part of a store, and not changed for a day"});
        });
      }
    });
  }

  void evict_to_quota() {
    if (options_.quota == 0) return;
    StoreReport found = survey(store_, system_, true);
    std::uint64_t bytes = found.bytes();
    std::stable_sort(found.objects.begin(), found.objects.end(),
                     [](const auto& a, const auto& b) { return a.object.last_use < b.object.last_use; });
    for (const ObjectReport& object : found.objects) {
      if (bytes <= options_.quota) return;
      const std::uint64_t size = object.object.info.bytes;
      if (!object.in_use &&
          evict_one(object.object.info, "over the quota of " + format_bytes(options_.quota)))
        bytes -= std::min(bytes, size);
    }
    if (bytes > options_.quota) {
      report_.problems.push_back(
          fmt::format("{} over the quota of {}, but everything is in use or was used recently",
                      format_bytes(bytes - options_.quota), format_bytes(options_.quota)));
    }
  }

  bool evict_one(const ObjectInfo& info, const std::string& why) {
    bool done = false;
    attempt([&] {
      done = options_.dry_run ? now() - store_.last_use(info.name) >= options_.keep
                              : store_.evict(info.name, options_.keep);
    });
    if (done) {
      report_.removed.push_back(
          {.what = "object", .name = info.name, .source = info.source, .bytes = info.bytes, .why = why});
    }
    return done;
  }

  StoreReport report() {
    StoreReport report;
    attempt([&] { report = survey(store_, system_, true); });
    report.folder = store_.folder();
    report.removed = std::move(report_.removed);
    report.problems.insert(report.problems.end(), report_.problems.begin(), report_.problems.end());
    return report;
  }

 private:
  template <typename Work>
  void attempt(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      report_.problems.emplace_back(error.what());
    }
  }

  /// Removes a file or link that lies where an object's folder should be. No step can have a valid lease on it.
  void remove_garbage(const std::string& entry) {
    if (!options_.dry_run) system_.remove_all(store_.folder() / "objects" / entry);
    report_.removed.push_back({.what = "leftover",
                               .name = entry,
                               .source = "",
                               .bytes = 0,
                               .why = "not a folder, so not an object"});
  }

  /// Reports what recover() is about to remove.
  void report_leftover(const std::string& entry) {
    const std::string name = object_of(entry);
    if (!is_folder(system_, store_.folder() / "objects" / entry)) return remove_garbage(entry);
    if (name.empty()) return;
    const bool partial = entry.starts_with(kIncoming);
    const IncomingUsage copy = store_.incoming_usage(name);
    if (copy.alive || (partial && now() - copy.newest < options_.abandoned)) return;
    report_.removed.push_back(
        {.what = partial ? "partial copy" : "leftover",
         .name = entry,
         .source = "",
         .bytes = measure(system_, store_.folder() / "objects" / entry).bytes,
         .why = partial ? "left by a killed call and not continued" : "left by a killed removal"});
  }

  /// Jobs that have a step which holds its lease file.
  std::set<std::string> jobs_alive() {
    std::set<std::string> alive;
    const fs::path held = store_.folder() / "leases" / kHeld;
    for (const std::string& step : system_.list_if_there(held).value_or(Names())) {
      const auto fd = system_.open_if_there(held / step, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
      if (fd && !system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, held / step))
        alive.insert(step.substr(0, step.find('.')));
    }
    return alive;
  }

  Time newest_in(const fs::path& folder) {
    Time newest;
    if (const auto status = system_.status(folder)) newest = modified(*status);
    if (!is_folder(system_, folder)) return newest;
    for (const std::string& name : system_.list_if_there(folder).value_or(Names())) {
      if (const auto status = system_.status(folder / name)) newest = std::max(newest, modified(*status));
    }
    return newest;
  }

  void remove_job_folder(const fs::path& jobs, const std::string& job) {
    const auto status = system_.status(jobs / job);
    if (!status || now() - newest_in(jobs / job) < options_.abandoned) return;
    std::optional<UniqueFd> lock;
    if (S_ISDIR(status->st_mode)) {
      const fs::path file = jobs / job / "lock";
      lock = system_.open_if_there(file, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
      if (lock && !system_.lock(lock->get(), FileSystem::LockKind::exclusive, false, file)) return;
      // Look again: a step takes its lease before it uses this folder, perhaps since the leases were read.
      if (jobs_alive().contains(job.substr(0, job.find('-')))) return;
    }
    Removal removal{.what = "job folder",
                    .name = "jobs/" + job,
                    .source = "",
                    .bytes = 0,
                    .why = "no step of the job holds a lease, and nothing was staged in it for a day"};
    if (!options_.dry_run) {
      const fs::path removed = jobs / (std::string(kRemoved) + job);
      system_.remove_all(removed);
      system_.rename(jobs / job, removed);
      removal.bytes = measure(system_, removed).bytes;
      system_.remove_all(removed);
    }
    report_.removed.push_back(std::move(removal));
  }

  void remove_folder(const fs::path& folder, Removal removal) {
    removal.bytes = measure(system_, folder).bytes;
    if (!options_.dry_run) system_.remove_all(folder);
    report_.removed.push_back(std::move(removal));
  }

  /// Removes lease files of steps that have ended.
  void remove_held_files() {
    const fs::path held = store_.folder() / "leases" / kHeld;
    for (const std::string& step : system_.list_if_there(held).value_or(Names())) {
      const auto status = system_.status(held / step);
      const Time changed(std::chrono::seconds(status ? status->st_ctim.tv_sec : 0));
      if (!status || now() - changed < options_.abandoned) continue;
      if (S_ISREG(status->st_mode)) {
        const auto fd = system_.open_if_there(held / step, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        if (!fd || !system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, held / step)) continue;
      }
      if (!options_.dry_run) system_.remove_all(held / step);
    }
  }

  Store& store_;
  FileSystem& system_;
  const CollectOptions& options_;
  StoreReport report_;
};

}  // namespace

StoreReport collect(Store& store, FileSystem& system, const CollectOptions& options) {
  Collector collector(store, system, options);
  collector.remove_leftovers();
  collector.remove_jobs();
  collector.remove_foreign();
  collector.evict_to_quota();
  return collector.report();
}

StoreReport evict(Store& store, FileSystem& system, const Names& names, const std::string& why,
                  const CollectOptions& options) {
  Collector collector(store, system, options);
  for (const std::string& name : names) {
    ObjectInfo info{.name = name};
    try {
      info = store.info(name, true);
    } catch (const Error&) {  // damaged, but it can be evicted
    }
    info.bytes = measure(system, store.files(name)).bytes;
    collector.evict_one(info, why);
  }
  return collector.report();
}

}  // namespace lockstep::cache
