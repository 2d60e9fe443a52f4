#include "staging/cache/report.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/leaf/text.h"
#include "staging/cache/layout.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

constexpr std::size_t kMaxTextBytes = 4096;  // of a path

std::int64_t count(Time time) {
  return time.time_since_epoch().count();
}
Time time_of(const json& value) {
  return Time(std::chrono::nanoseconds(value.get<std::int64_t>()));
}

json to_json(const ObjectReport& report) {
  json leases = json::array();
  for (const LeaseHolder& lease : report.leases)
    leases.push_back({{"step", lease.step}, {"user", lease.user}});
  const ObjectUsage& object = report.object;
  return {{"name", object.info.name},       {"source", object.info.source},
          {"format", object.info.format},   {"bytes", object.info.bytes},
          {"created", object.info.created}, {"last_use", count(object.last_use)},
          {"problem", object.problem},      {"leases", leases},
          {"in_use", report.in_use}};
}

std::string text_from(const json& value) {
  return printable(value.get<std::string>(), kMaxTextBytes);
}

ObjectReport object_from(const json& value) {
  ObjectReport report;
  report.object = {.info = {.name = text_from(value.at("name")),
                            .source = text_from(value.at("source")),
                            .bytes = value.at("bytes").get<std::uint64_t>(),
                            .created = value.at("created").get<std::int64_t>(),
                            .format = text_from(value.at("format"))},
                   .last_use = time_of(value.at("last_use")),
                   .problem = text_from(value.at("problem"))};
  for (const json& lease : value.at("leases"))
    report.leases.push_back({.step = text_from(lease.at("step")), .user = lease.at("user")});
  report.in_use = value.at("in_use");
  return report;
}

}  // namespace

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
           {"objects", json::array()},
           {"incoming", json::array()},
           {"removed", json::array()}};
  for (const ObjectReport& object : report.objects) value["objects"].push_back(to_json(object));
  for (const IncomingUsage& copy : report.incoming) {
    value["incoming"].push_back({{"name", copy.name},
                                 {"reserved", copy.reserved},
                                 {"present", copy.present},
                                 {"alive", copy.alive},
                                 {"newest", count(copy.newest)}});
  }
  for (const Removal& removal : report.removed) {
    value["removed"].push_back({{"what", removal.what},
                                {"name", removal.name},
                                {"source", removal.source},
                                {"bytes", removal.bytes},
                                {"why", removal.why}});
  }
}

void from_json(const json& value, StoreReport& report) {
  report.folder = value.at("folder").get<std::string>();
  report.user = value.at("user");
  report.jobs = value.at("jobs");
  report.jobs_bytes = value.at("jobs_bytes");
  report.foreign_bytes = value.at("foreign_bytes");
  for (const json& problem : value.at("problems")) report.problems.push_back(text_from(problem));
  for (const json& object : value.at("objects")) report.objects.push_back(object_from(object));
  for (const json& copy : value.at("incoming")) {
    report.incoming.push_back({.name = text_from(copy.at("name")),
                               .reserved = copy.at("reserved"),
                               .present = copy.at("present"),
                               .alive = copy.at("alive"),
                               .newest = time_of(copy.at("newest"))});
  }
  for (const json& removal : value.at("removed")) {
    report.removed.push_back({.what = text_from(removal.at("what")),
                              .name = text_from(removal.at("name")),
                              .source = text_from(removal.at("source")),
                              .bytes = removal.at("bytes"),
                              .why = text_from(removal.at("why"))});
  }
}

}  // namespace lockstep::cache
