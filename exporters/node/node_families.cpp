#include "exporters/node/node_families.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"

namespace lockstep::exporter {
namespace {

using prometheus::MetricType;

constexpr std::uint64_t kMaxBytes = 4 << 20;
constexpr std::size_t kMaxUsers = 1000;
constexpr std::size_t kMaxReason = 200;
constexpr int kUsageVersion = 1;

void parse_usage(const std::string& text, CacheUsage& usage) {
  const nlohmann::json json = nlohmann::json::parse(text);
  const int version = json.at("version").get<int>();
  if (version != kUsageVersion)
    fail("it has version {}, and this exporter knows version {}", version, kUsageVersion);
  CacheUsage read;
  std::map<std::string, CacheUser> users;  // two user ids may have one name, and series must differ
  for (const nlohmann::json& user : json.at("users")) {
    if (users.size() == kMaxUsers) break;
    const auto name = user.at("user").get<std::string>();
    CacheUser& sum = users[name];
    sum.name = name;
    sum.bytes += user.at("bytes").get<std::uint64_t>();
    sum.objects += user.at("objects").get<std::uint64_t>();
  }
  for (auto& [name, user] : users) read.users.push_back(std::move(user));
  usage.bytes = json.at("total").get<std::uint64_t>();
  usage.shared_bytes = json.at("shared").get<std::uint64_t>();
  usage.written = json.at("written").get<std::uint64_t>();
  usage.users = std::move(read.users);
}

// The cache's folder is root's. Where it is not, its owner could have written anything.
void read_usage(const std::filesystem::path& file, CacheUsage& usage) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return;
  if (!fd) fail_errno("cannot open {}", file.string());
  struct stat status = {};
  const std::string text = read_untrusted_file(fd, kMaxBytes, file.string());
  if (::fstat(fd.get(), &status) != 0 || (status.st_uid != 0 && status.st_uid != ::geteuid()))
    fail("{} is not a file of root", file.string());
  try {
    parse_usage(text, usage);
  } catch (const std::exception& error) {
    fail("{} is not what lockstep-stage gc writes: {}", file.string(), printable(error.what(), kMaxReason));
  }
}

// Several steps of a job name the same source: the one that copied it says from where, and the largest values count.
StagedSource merged(const StagedSource& a, const StagedSource& b) {
  return {.source = a.source,
          .bytes = std::max(a.bytes, b.bytes),
          .done = std::max(a.done, b.done),
          .from_source = std::max(a.from_source, b.from_source),
          .from_peers = std::max(a.from_peers, b.from_peers),
          .hit = a.hit && b.hit,
          .seconds = std::max(a.seconds, b.seconds)};
}

// The staged data of a job on this node, each source once.
struct JobStaging {
  Labels labels;
  StagingRecord record;
};

std::vector<JobStaging> by_job(const std::vector<StepStaging>& steps, const std::string& node) {
  std::map<std::pair<std::string, std::string>, std::map<std::string, StagedSource>> jobs;
  for (const StepStaging& step : steps) {
    auto& sources = jobs[{step.user, step.job}];
    for (const StagedSource& source : step.record.sources) {
      const auto [entry, fresh] = sources.emplace(source.source, source);
      if (!fresh) entry->second = merged(entry->second, source);
    }
  }
  std::vector<JobStaging> result;
  for (const auto& [user_and_job, sources] : jobs) {
    JobStaging& job = result.emplace_back(
        JobStaging{.labels = {{"job_id", user_and_job.second}, {"node", node}}, .record = {}});
    for (const auto& [name, source] : sources) job.record.sources.push_back(source);
  }
  return result;
}

}  // namespace

const CacheUsage& CacheUsageMeter::usage(std::chrono::steady_clock::time_point now) {
  if (looked_up_ && now - *looked_up_ < keep_) return usage_;
  looked_up_ = now;
  usage_ = {};
  error_.clear();
  struct statvfs status = {};
  if (cache_.empty() || ::statvfs(cache_.c_str(), &status) != 0) return usage_;
  usage_.file_system_bytes = std::uint64_t{status.f_blocks} * status.f_frsize;
  usage_.available_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  try {
    read_usage(cache_ / "usage.json", usage_);
  } catch (const Error& error) {
    ++errors_;
    error_ = error.what();
  }
  return usage_;
}

void add_staging(const std::vector<StepStaging>& steps, const std::string& node, FamilyStream& stream) {
  const std::vector<JobStaging> jobs = by_job(steps, node);
  const auto gauge = [&](const char* name, const char* help, const auto& value) {
    stream.family(name, MetricType::Gauge, help);
    for (const JobStaging& job : jobs) stream.add(job.labels, static_cast<double>(value(job.record)));
  };
  gauge("lockstep_stage_expected_bytes", "Bytes that the job stages on this node.",
        [](const StagingRecord& staging) { return staging.sum(&StagedSource::bytes); });
  gauge("lockstep_stage_seconds", "Time that staging took before the job's first task.",
        [](const StagingRecord& staging) { return staging.sum(&StagedSource::seconds); });
  gauge("lockstep_stage_hits", "Sources that were already in the node's cache when the job began.",
        [](const StagingRecord& staging) { return staging.hits(); });
  gauge("lockstep_stage_misses", "Sources that had to be copied.",
        [](const StagingRecord& staging) { return staging.sources.size() - staging.hits(); });
  stream.family("lockstep_stage_bytes", MetricType::Gauge,
                "Bytes staged for the job on this node so far, by origin.");
  for (const JobStaging& job : jobs) {
    const std::uint64_t source = job.record.sum(&StagedSource::from_source);
    const std::uint64_t peers = job.record.sum(&StagedSource::from_peers);
    const std::uint64_t done = job.record.sum(&StagedSource::done);
    const auto add = [&](const char* origin, std::uint64_t bytes) {
      stream.add(with(job.labels, "origin", origin), static_cast<double>(bytes));
    };
    add("source", source);
    add("peers", peers);
    add("cache", done - std::min(done, source + peers));
  }
  stream.family(
      "lockstep_stage_state", MetricType::Gauge,
      "1 for the current state of a step's staging: staging, done, source (the step reads from the source instead), failed.");
  for (const StepStaging& step : steps) {
    for (const char* state : kStagingStates) {
      stream.add(with(labels_of(step.job, step.step, node), "state", state),
                 state == name(step.record.state) ? 1 : 0);
    }
  }
}

void add_cache(const CacheUsage& cache, const Labels& node, FamilyStream& stream) {
  const auto gauge = [&](const char* name, const char* help, const auto& value) {
    stream.family(name, MetricType::Gauge, help);
    if (value) stream.add(node, static_cast<double>(*value));
  };
  gauge("lockstep_cache_bytes", "Size of the node's cache on disk, as lockstep-stage gc measured it last.",
        cache.bytes);
  gauge("lockstep_cache_shared_bytes", "The part of it that is in the store that all users share.",
        cache.shared_bytes);
  gauge("lockstep_cache_measured_timestamp_seconds", "When lockstep-stage gc measured the cache.",
        cache.written);
  gauge("lockstep_cache_filesystem_size_bytes", "Size of the file system that holds the cache.",
        cache.file_system_bytes);
  gauge("lockstep_cache_filesystem_available_bytes", "Space available to users on that file system.",
        cache.available_bytes);
  const auto of_users = [&](const char* name, const char* help, std::uint64_t CacheUser::*value) {
    stream.family(name, MetricType::Gauge, help);
    for (const CacheUser& user : cache.users)
      stream.add(with(node, "user_name", user.name), static_cast<double>(user.*value));
  };
  of_users("lockstep_cache_user_bytes", "Size of a user's store on this node.", &CacheUser::bytes);
  of_users("lockstep_cache_user_objects", "Number of objects in a user's store on this node.",
           &CacheUser::objects);
}

}  // namespace lockstep::exporter
