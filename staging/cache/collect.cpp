#include "staging/cache/collect.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/units.h"
#include "staging/cache/layout.h"

template <>
struct nlohmann::adl_serializer<lockstep::cache::Time> {
  static void to_json(json& value, lockstep::cache::Time time) { value = time.time_since_epoch().count(); }
  static void from_json(const json& value, lockstep::cache::Time& time) {
    time = lockstep::cache::Time(std::chrono::nanoseconds(value.get<std::int64_t>()));
  }
};

namespace lockstep::cache {

namespace {

namespace fs = std::filesystem;

using nlohmann::json;

constexpr std::size_t kMaxTextBytes = 4096;  // of a path

// Another user may have chosen the texts.
void make_printable(json& value) {
  if (value.is_string()) value = printable(value.get<std::string>(), kMaxTextBytes);
  if (!value.is_structured()) return;
  for (json& part : value) make_printable(part);
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LeaseHolder, step, user)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ObjectInfo, name, source, bytes, created, format)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ObjectUsage, info, last_use, problem)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ObjectReport, object, leases, in_use)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(IncomingUsage, name, reserved, present, alive, newest)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Removal, what, name, source, bytes, why)

namespace {

template <typename Counts>
std::uint64_t bytes_of(const std::vector<ObjectReport>& objects, const Counts& counts) {
  std::uint64_t total = 0;
  for (const ObjectReport& object : objects) {
    if (counts(object)) total = sum(total, object.object.info.bytes);
  }
  return total;
}

}  // namespace

std::uint64_t StoreReport::bytes() const {
  const std::uint64_t all = bytes_of(objects, [](const ObjectReport&) { return true; });
  return sum(sum(jobs_bytes, foreign_bytes), sum(bytes_copying(), all));
}

std::uint64_t StoreReport::bytes_in_use() const {
  return sum(jobs_bytes, bytes_of(objects, [](const ObjectReport& object) { return object.in_use; }));
}

std::uint64_t StoreReport::bytes_copying() const {
  std::uint64_t total = 0;
  for (const IncomingUsage& copy : incoming) total = sum(total, copy.bytes());
  return total;
}

std::uint64_t StoreReport::bytes_idle(std::chrono::seconds keep) const {
  std::uint64_t total = bytes_of(objects, [&](const ObjectReport& object) {
    return !object.in_use && now() - object.object.last_use >= keep;
  });
  for (const IncomingUsage& copy : incoming) {
    if (!copy.alive) total = sum(total, copy.bytes());
  }
  return total;
}

std::uint64_t StoreReport::bytes_recent(std::chrono::seconds keep) const {
  return bytes_of(objects, [&](const ObjectReport& object) {
    return !object.in_use && now() - object.object.last_use < keep;
  });
}

StoreReport survey(Store& store, FileSystem& system, bool measured) {
  StoreReport report{.folder = store.folder(), .user = ::geteuid()};
  Usage usage = store.usage(measured);
  for (ObjectUsage& object : usage.objects) {
    const std::string name = object.info.name;
    if (!object.problem.empty()) report.problems.push_back(object.problem);
    report.objects.push_back({.object = std::move(object), .leases = {}, .in_use = true});
    try {
      report.objects.back().leases = store.leases(name);
      report.objects.back().in_use = store.in_use(name);
    } catch (const Error& error) {  // unknown, so it stays "in use"
      report.problems.emplace_back(error.what());
    }
  }
  report.incoming = std::move(usage.incoming);
  report.jobs_bytes = usage.jobs;
  if (measured) {
    for (const fs::path& entry : foreign_entries(system, store.folder()))
      report.foreign_bytes = sum(report.foreign_bytes, measure(system, store.folder() / entry).bytes);
  }
  for (const std::string& job :
       system.list_if_there(store.folder() / "jobs").value_or(std::vector<std::string>())) {
    if (!job.starts_with('.')) ++report.jobs;
  }
  return report;
}

StoreReport survey_shared(const fs::path& folder, FileSystem& system) {
  StoreReport report{.folder = folder, .user = 0};
  for (const std::string& name : system.list(folder / "objects")) {
    if (name.starts_with('.')) continue;
    const fs::path description = folder / "objects" / name / kDescription;
    try {
      ObjectReport object;
      object.object.info = read_object(description, name, true);
      if (const auto status = system.status(description)) object.object.last_use = modified(*status);
      const auto leases = system.status(folder / "leases" / name);
      if (leases) object.object.last_use = std::max(object.object.last_use, modified(*leases));
      report.objects.push_back(std::move(object));
    } catch (const Error&) {
      continue;  // only another group may read it
    }
  }
  return report;
}

void to_json(json& value, const StoreReport& report) {
  value = {{"folder", report.folder.string()},
           {"user", report.user},
           {"jobs", report.jobs},
           {"jobs_bytes", report.jobs_bytes},
           {"foreign_bytes", report.foreign_bytes},
           {"problems", report.problems},
           {"objects", report.objects},
           {"incoming", report.incoming},
           {"removed", report.removed}};
}

void from_json(const json& value, StoreReport& report) {
  report.folder = value.at("folder").get<std::string>();
  report.user = value.at("user");
  report.jobs = value.at("jobs");
  report.jobs_bytes = value.at("jobs_bytes");
  report.foreign_bytes = value.at("foreign_bytes");
  const auto read = [&](const char* key, auto& into) {
    json texts = value.at(key);
    make_printable(texts);
    texts.get_to(into);
  };
  read("problems", report.problems);
  read("objects", report.objects);
  read("incoming", report.incoming);
  read("removed", report.removed);
}

namespace {

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
