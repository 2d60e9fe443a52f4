#include "staging/cache/report.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/leaf/text.h"
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

std::uint64_t StoreReport::bytes() const {
  std::uint64_t total = sum(sum(jobs_bytes, foreign_bytes), bytes_copying());
  for (const ObjectReport& object : objects) total = sum(total, object.object.info.bytes);
  return total;
}

std::uint64_t StoreReport::bytes_in_use() const {
  std::uint64_t total = jobs_bytes;
  for (const ObjectReport& object : objects) {
    if (object.in_use) total = sum(total, object.object.info.bytes);
  }
  return total;
}

std::uint64_t StoreReport::bytes_copying() const {
  std::uint64_t total = 0;
  for (const IncomingUsage& copy : incoming) total = sum(total, copy.bytes());
  return total;
}

std::uint64_t StoreReport::bytes_idle(std::chrono::seconds keep) const {
  std::uint64_t total = 0;
  for (const ObjectReport& object : objects) {
    if (!object.in_use && now() - object.object.last_use >= keep)
      total = sum(total, object.object.info.bytes);
  }
  for (const IncomingUsage& copy : incoming) {
    if (!copy.alive) total = sum(total, copy.bytes());
  }
  return total;
}

std::uint64_t StoreReport::bytes_recent(std::chrono::seconds keep) const {
  std::uint64_t total = 0;
  for (const ObjectReport& object : objects) {
    if (!object.in_use && now() - object.object.last_use < keep) total = sum(total, object.object.info.bytes);
  }
  return total;
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

}  // namespace lockstep::cache
