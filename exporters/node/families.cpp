#include "exporters/node/families.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <streambuf>
#include <utility>

#include "exporters/families/family_stream.h"
#include "exporters/families/rank_families.h"

namespace lockstep::exporter {
namespace {

using prometheus::MetricType;

// About the size of the page, because a text that grows is in memory twice.
constexpr std::size_t kBytesOfRank = 3600;
constexpr std::size_t kBytesBesideRanks = 64 << 10;

// The text of each family as it arrives.
class PageText : private std::streambuf {
 public:
  explicit PageText(std::size_t expected_bytes) : out_(this) { text_.reserve(expected_bytes); }

  void append(prometheus::MetricFamily&& family) {
    families_[0] = std::move(family);
    serializer_.Serialize(out_, families_);
    families_[0] = {};
  }
  std::string take() { return std::move(text_); }

 private:
  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    text_.append(bytes, static_cast<std::size_t>(count));
    return count;
  }
  int_type overflow(int_type byte) override {
    text_ += traits_type::to_char_type(byte);
    return byte;
  }

  std::string text_;
  std::ostream out_;
  prometheus::TextSerializer serializer_;
  std::vector<prometheus::MetricFamily> families_{1};
};

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

class StagingFamilies {
 public:
  StagingFamilies(const std::vector<StepStaging>& steps, const std::string& node, FamilyStream& stream)
      : steps_(steps), node_(node), stream_(stream), jobs_(by_job(steps, node)) {}

  void add() {
    gauge("lockstep_stage_expected_bytes", "Bytes that the job stages on this node.",
          [](const StagingRecord& staging) { return static_cast<double>(staging.bytes()); });
    gauge("lockstep_stage_seconds", "Time that staging took before the job's first task.",
          [](const StagingRecord& staging) { return staging.seconds(); });
    gauge("lockstep_stage_hits", "Sources that were already in the node's cache when the job began.",
          [](const StagingRecord& staging) { return static_cast<double>(staging.hits()); });
    gauge("lockstep_stage_misses", "Sources that had to be copied.", [](const StagingRecord& staging) {
      return static_cast<double>(staging.sources.size() - staging.hits());
    });
    stream_.family("lockstep_stage_bytes", MetricType::Gauge,
                   "Bytes staged for the job on this node so far, by origin.");
    for (const JobStaging& job : jobs_) {
      const std::uint64_t read = job.record.from_source() + job.record.from_peers();
      const auto add = [&](const char* origin, std::uint64_t bytes) {
        stream_.add(with(job.labels, "origin", origin), static_cast<double>(bytes));
      };
      add("source", job.record.from_source());
      add("peers", job.record.from_peers());
      add("cache", job.record.done() - std::min(job.record.done(), read));
    }
    stream_.family(
        "lockstep_stage_state", MetricType::Gauge,
        "1 for the current state of a step's staging: staging, done, source (the step reads from the source instead), failed.");
    for (const StepStaging& step : steps_) {
      const Labels labels = labels_of(step.job, step.step, node_);
      for (std::size_t state = 0; state < kStagingStates.size(); ++state) {
        const bool current = static_cast<std::size_t>(step.record.state) == state;
        stream_.add(with(labels, "state", kStagingStates.at(state)), current ? 1 : 0);
      }
    }
  }

 private:
  template <typename Value>
  void gauge(const char* name, const char* help, const Value& value) {
    stream_.family(name, MetricType::Gauge, help);
    for (const JobStaging& job : jobs_) stream_.add(job.labels, value(job.record));
  }

  const std::vector<StepStaging>& steps_;
  const std::string& node_;
  FamilyStream& stream_;
  std::vector<JobStaging> jobs_;
};

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
  stream.family("lockstep_cache_user_bytes", MetricType::Gauge, "Size of a user's store on this node.");
  for (const CacheUser& user : cache.users) {
    stream.add(with(node, "user_name", user.name), static_cast<double>(user.bytes));
  }
  stream.family("lockstep_cache_user_objects", MetricType::Gauge,
                "Number of objects in a user's store on this node.");
  for (const CacheUser& user : cache.users) {
    stream.add(with(node, "user_name", user.name), static_cast<double>(user.objects));
  }
}

void add_own(const OwnCounts& own, std::size_t ranks, const Labels& node, FamilyStream& stream) {
  stream.family("lockstep_exporter_ranks", MetricType::Gauge, "Ranks served now.");
  stream.add(node, static_cast<double>(ranks));
  stream.family("lockstep_exporter_scrape_seconds", MetricType::Gauge,
                "Time to read the records for this scrape.");
  stream.add(node, own.scrape_seconds);
  stream.family("lockstep_exporter_dropped_series_total", MetricType::Counter,
                "Series that were not served because there were too many records.");
  stream.add(node, static_cast<double>(own.dropped_series));
  stream.family("lockstep_exporter_errors_total", MetricType::Counter, "Read errors by kind.");
  const auto errors = [&](const char* what, std::uint64_t count) {
    stream.add(with(node, "what", what), static_cast<double>(count));
  };
  errors("record", own.record_errors);
  errors("staging", own.staging_errors);
  errors("cache", own.cache_errors);
  errors("scrape", own.scrape_errors);
}

}  // namespace

std::string make_page(const ScanResult& scan, const std::string& node, const CacheUsage& cache,
                      const OwnCounts& own) {
  std::size_t ranks = 0;
  for (const JobRecords& job : scan.jobs) ranks += job.ranks.size();
  PageText page(kBytesBesideRanks + ranks * kBytesOfRank);
  FamilyStream stream([&](prometheus::MetricFamily&& family) { page.append(std::move(family)); });
  stream_rank_families(scan.jobs, node, stream);
  StagingFamilies(scan.staging, node, stream).add();
  const Labels on_node{{"node", node}};
  add_cache(cache, on_node, stream);
  add_own(own, ranks, on_node, stream);
  stream.finish();
  return page.take();
}

}  // namespace lockstep::exporter
