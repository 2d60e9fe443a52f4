#include "exporters/node/families.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "exporters/record/phase.h"

namespace lockstep::exporter {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using record::Counters;
using record::Snapshot;
using Labels = std::vector<ClientMetric::Label>;

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Serves the bounds 1, 2 and 5 of each decade. The record has more, but every series costs memory in
// Prometheus.
constexpr bool is_served(std::uint64_t bound) {
  while (bound % 10 == 0) bound /= 10;
  return bound == 1 || bound == 2 || bound == 5;
}

// Users choose program names; anything but plain text would break the page for everyone.
std::string plain(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '_';
  }
  return text;
}

class Families {
 public:
  explicit Families(std::size_t ranks) : ranks_(ranks) {}

  void add(const char* name, const char* help, MetricType type, Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family(name, help, type).metric.push_back(std::move(metric));
  }
  void counter(const char* name, const char* help, Labels labels, double value) {
    add(name, help, MetricType::Counter, std::move(labels), value);
  }
  void gauge(const char* name, const char* help, Labels labels, double value) {
    add(name, help, MetricType::Gauge, std::move(labels), value);
  }
  void histogram(const char* name, const char* help, Labels labels, const record::Histogram& counts,
                 std::uint64_t sum_ns) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < record::kBucketBounds.size(); ++i) {
      cumulative += counts[i];
      if (is_served(record::kBucketBounds[i])) {
        metric.histogram.bucket.push_back({cumulative, seconds(record::kBucketBounds[i])});
      }
    }
    metric.histogram.sample_count = cumulative + counts.back();
    metric.histogram.sample_sum = seconds(sum_ns);
    family(name, help, MetricType::Histogram).metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  MetricFamily& family(const char* name, const char* help, MetricType type) {
    // All ranks add the same names in the same order, so the next family is nearly always the right one.
    for (std::size_t tried = 0; tried < families_.size(); ++tried) {
      next_ = (next_ + 1) % families_.size();
      if (families_[next_].name == name) return families_[next_];
    }
    next_ = families_.size();
    MetricFamily& made = families_.emplace_back(MetricFamily{name, help, type, {}});
    // Growing by doubling would need twice the memory in the end.
    made.metric.reserve(made.name == "lockstep_phase_seconds_total" ? ranks_ * record::kPhases : ranks_);
    return made;
  }

  std::size_t ranks_;
  std::vector<MetricFamily> families_;
  std::size_t next_ = 0;
};

Labels with(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

// Compares ranks of this node only; lockstep:straggler_score:ratio2m (rules) compares the ranks of the whole
// job.
void add_straggler_scores(Families& families, const std::vector<Labels>& labels, const JobRecords& job) {
  std::vector<double> own;
  for (const RankRecord& rank : job.ranks) own.push_back(rank.own_seconds);
  std::vector<double> sorted = own;
  std::erase(sorted, 0.0);
  if (sorted.empty()) return;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  const double median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] == 0.0) continue;
    families.gauge(
        "lockstep_straggler_score",
        "Own time per step of the rank over the last 32 steps, divided by the median of the job's ranks on "
        "this node. Own time is the step without exposed communication.",
        labels[i], own[i] / median);
  }
}

void add_communication(Families& families, const Labels& labels, const record::Counters& counters) {
  families.counter("lockstep_comm_transfer_seconds_total", "Communication, hidden behind computation or not.",
                   labels, seconds(counters.comm_transfer_ns));
  families.counter("lockstep_comm_wait_seconds_total", "Waiting for a rank that joined a collective later.",
                   labels, seconds(counters.comm_wait_ns));
}

void add_rank(Families& families, const Labels& labels, const Snapshot& rank) {
  const Counters& counters = rank.counters;
  families.gauge("lockstep_rank_up", "1 while the rank's process runs, 0 after it has ended.", labels,
                 rank.alive ? 1 : 0);
  families.histogram("lockstep_step_seconds", "Duration of training steps.", labels, counters.step_histogram,
                     counters.step_ns);
  for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
    families.counter(
        "lockstep_phase_seconds_total", "Time in each phase of the steps. The phases add up to the steps.",
        with(labels, "phase", std::string(record::kPhaseNames[phase])), seconds(counters.phase_ns[phase]));
  }
  const auto count = [&](const char* name, const char* help, std::uint64_t value) {
    families.counter(name, help, labels, static_cast<double>(value));
  };
  count("lockstep_steps_total", "Training steps.", counters.steps);
  count("lockstep_tokens_total", "Tokens trained on, without padding.", counters.tokens);
  count("lockstep_samples_total", "Samples trained on.", counters.samples);
  count("lockstep_padding_tokens_total", "Padding tokens that were computed on.", counters.padding);
  count("lockstep_skipped_steps_total", "Steps that the loss scaler skipped.", counters.skipped_steps);
  count("lockstep_read_bytes_total", "Bytes that the loader read from packed files.", counters.bytes_read);
  if (counters.communication_measured()) add_communication(families, labels, counters);
  families.gauge("lockstep_last_step_timestamp_seconds",
                 "When the last step ended or, before the first step, when the rank started.", labels,
                 static_cast<double>(rank.last_unix_ns()) * 1e-9);
  families.gauge("lockstep_loss_scale", "Factor of the loss scaler; 0 without a loss scaler.", labels,
                 counters.loss_scale);
}

void add_staging(Families& families, const Labels& labels, const StagingRecord& staging) {
  const std::uint64_t read = staging.from_source() + staging.from_peers();
  const std::uint64_t cached = staging.done() - std::min(staging.done(), read);
  const std::array<std::pair<const char*, std::uint64_t>, 3> origins = {
      {{"source", staging.from_source()}, {"peers", staging.from_peers()}, {"cache", cached}}};
  for (const auto& [origin, bytes] : origins) {
    families.gauge("lockstep_stage_bytes", "Bytes staged for the job on this node so far, by origin.",
                   with(labels, "origin", origin), static_cast<double>(bytes));
  }
  families.gauge("lockstep_stage_expected_bytes", "Bytes that the job stages on this node.", labels,
                 static_cast<double>(staging.bytes()));
  for (std::size_t state = 0; state < kStagingStates.size(); ++state) {
    families.gauge("lockstep_stage_state",
                   "1 for the current state of staging: staging, done, source (the job reads from the source "
                   "instead), failed.",
                   with(labels, "state", kStagingStates.at(state)),
                   static_cast<std::size_t>(staging.state) == state ? 1 : 0);
  }
  families.gauge("lockstep_stage_seconds", "Time that staging took before the job's first task.", labels,
                 staging.seconds());
  families.gauge("lockstep_stage_hits", "Sources that were already in the node's cache.", labels,
                 static_cast<double>(staging.hits()));
  families.gauge("lockstep_stage_misses", "Sources that had to be copied.", labels,
                 static_cast<double>(staging.sources.size() - staging.hits()));
}

void add_job(Families& families, const JobRecords& job, const std::string& node) {
  const Labels on_node = {{"job_id", job.job}, {"step_id", job.step}, {"node", node}};
  std::vector<Labels> labels;
  for (const RankRecord& rank : job.ranks) {
    labels.push_back(with(on_node, "rank", std::to_string(rank.snapshot.identity.rank)));
    add_rank(families, labels.back(), rank.snapshot);
  }
  add_straggler_scores(families, labels, job);
  if (job.staging) add_staging(families, on_node, *job.staging);
  if (job.ranks.empty()) return;
  const record::Identity& first = job.ranks.front().snapshot.identity;
  families.gauge("lockstep_job_info",
                 "A job step with ranks on this node: its user id, program and number of ranks.",
                 with(with(with(on_node, "user", job.user), "program", plain(first.program)), "ranks",
                      std::to_string(first.size)),
                 1);
}

void add_own(Families& families, const CacheUsage& cache, const OwnCounts& own, std::size_t ranks) {
  const auto bytes = [&](const char* name, const char* help, const std::optional<std::uint64_t>& value) {
    if (value) families.gauge(name, help, {}, static_cast<double>(*value));
  };
  bytes("lockstep_cache_bytes", "Size of the node's cache on disk; absent if a part of it cannot be read.",
        cache.bytes);
  for (const auto& [user, claimed] : cache.claims) {
    families.gauge("lockstep_cache_claimed_bytes",
                   "Size of a user's store on this node, as recorded by the user's jobs.", {{"user", user}},
                   static_cast<double>(claimed));
  }
  bytes("lockstep_cache_filesystem_size_bytes", "Size of the file system that holds the cache.",
        cache.file_system_bytes);
  bytes("lockstep_cache_filesystem_available_bytes", "Space available to users on that file system.",
        cache.available_bytes);

  families.gauge("lockstep_exporter_ranks", "Ranks served now.", {}, static_cast<double>(ranks));
  families.gauge("lockstep_exporter_scrape_seconds", "Time to read the records for this scrape.", {},
                 own.scrape_seconds);
  families.counter("lockstep_exporter_dropped_series_total",
                   "Series that were not served because there were too many records.", {},
                   static_cast<double>(own.dropped_series));
  const std::array<std::pair<const char*, std::uint64_t>, 4> errors = {{{"record", own.record_errors},
                                                                        {"staging", own.staging_errors},
                                                                        {"cache", own.cache_errors},
                                                                        {"scrape", own.scrape_errors}}};
  for (const auto& [what, count] : errors) {
    families.counter("lockstep_exporter_errors_total", "Read errors by kind.", {{"what", what}},
                     static_cast<double>(count));
  }
}

}  // namespace

std::size_t series_per_rank() {
  const auto buckets = std::count_if(record::kBucketBounds.begin(), record::kBucketBounds.end(), is_served);
  return static_cast<std::size_t>(buckets) + 3 + record::kPhases + 12;
}

std::vector<MetricFamily> make_families(const std::vector<JobRecords>& jobs, const std::string& node,
                                        const CacheUsage& cache, const OwnCounts& own) {
  std::size_t ranks = 0;
  for (const JobRecords& job : jobs) ranks += job.ranks.size();
  Families families(ranks);
  for (const JobRecords& job : jobs) add_job(families, job, node);
  add_own(families, cache, own, ranks);
  return families.take();
}

}  // namespace lockstep::exporter
