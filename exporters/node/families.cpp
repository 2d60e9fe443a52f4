#include "exporters/node/families.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "common/median.h"
#include "exporters/node/metrics_page.h"
#include "exporters/record/phase.h"
#include "exporters/record/waits.h"

namespace lockstep::exporter {
namespace {

using record::Counters;

constexpr double kNs = 1e-9;

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * kNs;
}

// Serves the bounds 1, 2 and 5 of each decade. The record has more, but every series costs memory in
// Prometheus.
constexpr bool is_served(std::uint64_t bound) {
  while (bound % 10 == 0) bound /= 10;
  return bound == 1 || bound == 2 || bound == 5;
}

constexpr std::size_t kBounds =
    std::count_if(record::kBucketBounds.begin(), record::kBucketBounds.end(), is_served);

constexpr std::array<double, kBounds> kServedBounds = [] {
  std::array<double, kBounds> served{};
  std::size_t next = 0;
  for (const std::uint64_t bound : record::kBucketBounds) {
    if (is_served(bound)) served.at(next++) = static_cast<double>(bound) / 1e9;
  }
  return served;
}();

void add_histogram(MetricsPage& page, const Labels& labels, const record::Histogram& counts,
                   std::uint64_t sum_ns) {
  std::array<std::uint64_t, kBounds + 1> cumulative{};
  std::uint64_t total = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < record::kBucketBounds.size(); ++i) {
    total += counts[i];
    if (is_served(record::kBucketBounds[i])) cumulative.at(next++) = total;
  }
  cumulative.back() = total + counts.back();
  page.histogram(labels, kServedBounds, cumulative, seconds(sum_ns));
}

// Users choose program names; anything but plain text would be hard to use in a query.
std::string plain(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '_';
  }
  return text;
}

struct Rank {
  const record::Snapshot* snapshot;
  Labels labels;
  double straggler_score = 0;  // 0: no step yet
};

struct Job {
  const JobRecords* records;
  Labels labels;  // of the step on this node
  std::vector<Rank> ranks;
};

// Compares ranks of this node only; lockstep:straggler_score:ratio2m (rules) compares the ranks of the whole
// job.
void set_straggler_scores(Job& job) {
  std::vector<double> own;
  for (const RankRecord& rank : job.records->ranks) {
    if (rank.own_seconds > 0) own.push_back(rank.own_seconds);
  }
  if (own.empty()) return;
  const double middle = median(std::move(own));
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    job.ranks[i].straggler_score = job.records->ranks[i].own_seconds / middle;
  }
}

class Families {
 public:
  Families(const std::vector<JobRecords>& jobs, const std::string& node)
      : node_(Labels().with("node", node)) {
    for (const JobRecords& records : jobs) {
      const Labels on_node =
          Labels().with("job_id", records.job).with("step_id", records.step).with("node", node);
      Job& job = jobs_.emplace_back(Job{.records = &records, .labels = on_node, .ranks = {}});
      for (const RankRecord& rank : records.ranks) {
        const std::string number = std::to_string(rank.snapshot.identity.rank);
        job.ranks.push_back({.snapshot = &rank.snapshot, .labels = on_node.with("rank", number)});
      }
      set_straggler_scores(job);
      ranks_ += job.ranks.size();
    }
  }

  void add_ranks() {
    gauge("lockstep_rank_up", "1 while the rank's process runs, 0 after it has ended.",
          [](const Rank& rank) { return std::optional(rank.snapshot->alive ? 1.0 : 0.0); });
    page_.family("lockstep_step_seconds", "histogram", "Duration of training steps.");
    each_rank([&](const Rank& rank) {
      const Counters& counters = rank.snapshot->counters;
      add_histogram(page_, rank.labels, counters.step_histogram, counters.step_ns);
    });
    page_.family("lockstep_phase_seconds_total", "counter",
                 "Time in each phase of the steps. The phases add up to the steps.");
    each_rank([&](const Rank& rank) {
      for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
        page_.sample(rank.labels.with("phase", record::kPhaseNames[phase]),
                     seconds(rank.snapshot->counters.phase_ns[phase]));
      }
    });
    counter("lockstep_steps_total", "Training steps.", &Counters::steps);
    counter("lockstep_tokens_total", "Tokens trained on, without padding.", &Counters::tokens);
    counter("lockstep_samples_total", "Samples trained on.", &Counters::samples);
    counter("lockstep_padding_tokens_total", "Padding tokens that were computed on.", &Counters::padding);
    counter("lockstep_skipped_steps_total", "Steps that the loss scaler skipped.", &Counters::skipped_steps);
    counter("lockstep_read_bytes_total", "Bytes that the loader read from packed files.",
            &Counters::bytes_read);
    communication("lockstep_comm_transfer_seconds_total", "Communication, hidden behind computation or not.",
                  &Counters::comm_transfer_ns);
    communication("lockstep_comm_wait_seconds_total", "Waiting for a rank that joined a collective later.",
                  &Counters::comm_wait_ns);
    gauge("lockstep_last_step_timestamp_seconds",
          "When the last step ended or, before the first step, when the rank started.", [](const Rank& rank) {
            return std::optional(static_cast<double>(rank.snapshot->last_unix_ns()) * kNs);
          });
    gauge("lockstep_loss_scale", "Factor of the loss scaler; 0 without a loss scaler.",
          [](const Rank& rank) { return std::optional(rank.snapshot->counters.loss_scale); });
    gauge("lockstep_straggler_score",
          "Own time per step of the rank over the last 32 steps, divided by the median of the job's ranks on "
          "this node. Own time is the step without exposed communication.",
          [](const Rank& rank) {
            return rank.straggler_score > 0 ? std::optional(rank.straggler_score) : std::nullopt;
          });
  }

  void add_jobs() {
    page_.family("lockstep_job_info", "gauge",
                 "A job step with ranks on this node: its user, program and number of ranks.");
    for (const Job& job : jobs_) {
      if (job.ranks.empty()) continue;
      const record::Identity& first = job.ranks.front().snapshot->identity;
      page_.sample(job.labels.with("user", job.records->user)
                       .with("user_name", job.records->user_name)
                       .with("program", plain(first.program))
                       .with("ranks", std::to_string(first.size)),
                   std::uint64_t{1});
    }
    page_.family(
        "lockstep_waited_for_seconds", "gauge",
        "Waiting per step over the last 32 steps, mean over the ranks on this node, for the rank that they "
        "waited for longest: late_rank. Absent without waiting, or if it is not measured.");
    for (const Job& job : jobs_) add_longest_wait(job);
    page_.family("lockstep_phase_duration_seconds", "histogram",
                 "Time of a step in each phase, over all ranks of the job step on this node. A phase without "
                 "any time is absent.");
    for (const Job& job : jobs_) {
      for (std::size_t phase = 0; phase < record::kPhases; ++phase) add_phase(job, phase);
    }
  }

  void add_staging() {
    staging("lockstep_stage_expected_bytes", "Bytes that the job stages on this node.",
            [](const StagingRecord& staging) { return static_cast<double>(staging.bytes()); });
    staging("lockstep_stage_seconds", "Time that staging took before the job's first task.",
            [](const StagingRecord& staging) { return staging.seconds(); });
    staging("lockstep_stage_hits", "Sources that were already in the node's cache.",
            [](const StagingRecord& staging) { return static_cast<double>(staging.hits()); });
    staging("lockstep_stage_misses", "Sources that had to be copied.", [](const StagingRecord& staging) {
      return static_cast<double>(staging.sources.size() - staging.hits());
    });
    page_.family("lockstep_stage_bytes", "gauge", "Bytes staged for the job on this node so far, by origin.");
    each_staging([&](const Labels& labels, const StagingRecord& staging) {
      const std::uint64_t read = staging.from_source() + staging.from_peers();
      page_.sample(labels.with("origin", "source"), staging.from_source());
      page_.sample(labels.with("origin", "peers"), staging.from_peers());
      page_.sample(labels.with("origin", "cache"), staging.done() - std::min(staging.done(), read));
    });
    page_.family("lockstep_stage_state", "gauge",
                 "1 for the current state of staging: staging, done, source (the job reads from the source "
                 "instead), failed.");
    each_staging([&](const Labels& labels, const StagingRecord& staging) {
      for (std::size_t state = 0; state < kStagingStates.size(); ++state) {
        page_.sample(labels.with("state", kStagingStates.at(state)),
                     std::uint64_t{static_cast<std::size_t>(staging.state) == state});
      }
    });
  }

  void add_own(const CacheUsage& cache, const OwnCounts& own) {
    bytes("lockstep_cache_bytes", "Size of the node's cache on disk; absent if a part of it cannot be read.",
          cache.bytes);
    bytes("lockstep_cache_filesystem_size_bytes", "Size of the file system that holds the cache.",
          cache.file_system_bytes);
    bytes("lockstep_cache_filesystem_available_bytes", "Space available to users on that file system.",
          cache.available_bytes);
    page_.family("lockstep_cache_claimed_bytes", "gauge",
                 "Size of a user's store on this node, as recorded by the user's jobs.");
    for (const auto& [user, claim] : cache.claims) {
      page_.sample(node_.with("user", user).with("user_name", claim.user_name), claim.bytes);
    }
    page_.family("lockstep_exporter_ranks", "gauge", "Ranks served now.");
    page_.sample(node_, static_cast<std::uint64_t>(ranks_));
    page_.family("lockstep_exporter_scrape_seconds", "gauge", "Time to read the records for this scrape.");
    page_.sample(node_, own.scrape_seconds);
    page_.family("lockstep_exporter_dropped_series_total", "counter",
                 "Series that were not served because there were too many records.");
    page_.sample(node_, own.dropped_series);
    page_.family("lockstep_exporter_errors_total", "counter", "Read errors by kind.");
    page_.sample(node_.with("what", "record"), own.record_errors);
    page_.sample(node_.with("what", "staging"), own.staging_errors);
    page_.sample(node_.with("what", "cache"), own.cache_errors);
    page_.sample(node_.with("what", "scrape"), own.scrape_errors);
  }

  std::string take() { return page_.take(); }

 private:
  template <typename Work>
  void each_rank(const Work& work) const {
    for (const Job& job : jobs_) {
      for (const Rank& rank : job.ranks) work(rank);
    }
  }

  template <typename Work>
  void each_staging(const Work& work) const {
    for (const Job& job : jobs_) {
      if (job.records->staging) work(job.labels, *job.records->staging);
    }
  }

  template <typename Value>
  void gauge(const char* name, const char* help, const Value& value) {
    page_.family(name, "gauge", help);
    each_rank([&](const Rank& rank) {
      if (const std::optional<double> number = value(rank)) page_.sample(rank.labels, *number);
    });
  }

  void counter(const char* name, const char* help, std::uint64_t Counters::*field) {
    page_.family(name, "counter", help);
    each_rank([&](const Rank& rank) { page_.sample(rank.labels, rank.snapshot->counters.*field); });
  }

  void communication(const char* name, const char* help, std::uint64_t Counters::*field) {
    page_.family(name, "counter", help);
    each_rank([&](const Rank& rank) {
      const Counters& counters = rank.snapshot->counters;
      if (counters.communication_measured()) page_.sample(rank.labels, seconds(counters.*field));
    });
  }

  template <typename Value>
  void staging(const char* name, const char* help, const Value& value) {
    page_.family(name, "gauge", help);
    each_staging(
        [&](const Labels& labels, const StagingRecord& staging) { page_.sample(labels, value(staging)); });
  }

  void bytes(const char* name, const char* help, const std::optional<std::uint64_t>& value) {
    page_.family(name, "gauge", help);
    if (value) page_.sample(node_, *value);
  }

  // One rank only: a series for each pair of ranks would be too many.
  void add_longest_wait(const Job& job) {
    std::map<int, double> waits;
    for (const RankRecord& rank : job.records->ranks) {
      for (const auto& [late, seconds] : rank.waits) {
        waits[late] += seconds / static_cast<double>(job.records->ranks.size());
      }
    }
    const auto longest = record::longest_wait(waits);
    if (!longest) return;
    page_.sample(job.labels.with("late_rank", std::to_string(longest->first)), longest->second);
  }

  void add_phase(const Job& job, std::size_t phase) {
    record::Histogram counts{};
    std::uint64_t sum_ns = 0;
    for (const Rank& rank : job.ranks) {
      const Counters& counters = rank.snapshot->counters;
      sum_ns += counters.phase_ns[phase];
      for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += counters.phase_histogram[phase][i];
    }
    if (sum_ns > 0)
      add_histogram(page_, job.labels.with("phase", record::kPhaseNames[phase]), counts, sum_ns);
  }

  MetricsPage page_;
  Labels node_;
  std::vector<Job> jobs_;
  std::size_t ranks_ = 0;
};

}  // namespace

std::size_t series_per_rank() {
  return kBounds + 3 + record::kPhases + 12;
}

std::string make_page(const std::vector<JobRecords>& jobs, const std::string& node, const CacheUsage& cache,
                      const OwnCounts& own) {
  Families families(jobs, node);
  families.add_ranks();
  families.add_jobs();
  families.add_staging();
  families.add_own(cache, own);
  return families.take();
}

}  // namespace lockstep::exporter
