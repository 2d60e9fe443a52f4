#include "exporters/families/rank_families.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "common/median.h"
#include "exporters/record/goodput.h"
#include "exporters/record/layout.h"
#include "exporters/record/waits.h"

namespace lockstep::exporter {
namespace {

using prometheus::MetricType;
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

void add_histogram(FamilyStream& stream, Labels labels, const record::Histogram& counts,
                   std::uint64_t sum_ns) {
  std::array<std::uint64_t, kBounds + 1> cumulative{};
  std::uint64_t total = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < record::kBucketBounds.size(); ++i) {
    total += counts[i];
    if (is_served(record::kBucketBounds[i])) cumulative.at(next++) = total;
  }
  cumulative.back() = total + counts.back();
  stream.add(std::move(labels), kServedBounds, cumulative, seconds(sum_ns));
}

// Users choose program names; anything but plain text would be hard to use in a query.
std::string plain(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '_';
  }
  return text;
}

struct GpuFamily {
  const char* name;
  MetricType type;
  const char* help;
  double unit;
  std::uint64_t record::Gpu::*value;
  std::uint64_t record::Gpu::*known;  // not 0
};

constexpr double kHertz = 1e6;
constexpr double kMilli = 1e-3;
using record::Gpu;
constexpr std::array kGpuFamilies = {
    GpuFamily{"lockstep_gpu_memory_bytes", MetricType::Gauge,
              "Memory of the rank's GPU in use, by all processes.", 1, &Gpu::memory_bytes,
              &Gpu::memory_total_bytes},
    GpuFamily{"lockstep_gpu_memory_total_bytes", MetricType::Gauge, "Memory of the rank's GPU.", 1,
              &Gpu::memory_total_bytes, &Gpu::memory_total_bytes},
    GpuFamily{"lockstep_gpu_measured_seconds_total", MetricType::Counter,
              "Time since the first step in which the rank's GPU was sampled.", kNs, &Gpu::measured_ns,
              &Gpu::measured_ns},
    GpuFamily{"lockstep_gpu_busy_seconds_total", MetricType::Counter,
              "Part of it in which a kernel ran on the GPU.", kNs, &Gpu::busy_ns, &Gpu::measured_ns},
    GpuFamily{"lockstep_gpu_slowed_seconds_total", MetricType::Counter,
              "Part of it with lower clocks because of heat or of the power supply.", kNs, &Gpu::slowed_ns,
              &Gpu::measured_ns},
    GpuFamily{"lockstep_gpu_power_capped_seconds_total", MetricType::Counter,
              "Part of it with lower clocks because of the power limit.", kNs, &Gpu::capped_ns,
              &Gpu::measured_ns},
    GpuFamily{"lockstep_gpu_sm_clock_hertz", MetricType::Gauge, "Clock of the GPU's multiprocessors.", kHertz,
              &Gpu::sm_mhz, &Gpu::sm_mhz},
    GpuFamily{"lockstep_gpu_power_watts", MetricType::Gauge, "Power that the GPU draws.", kMilli,
              &Gpu::power_mw, &Gpu::power_mw},
    GpuFamily{"lockstep_gpu_energy_joules_total", MetricType::Counter,
              "Energy of the GPU since the rank uses it.", kMilli, &Gpu::energy_mj, &Gpu::energy_mj},
    GpuFamily{"lockstep_gpu_ecc_corrected_errors", MetricType::Gauge,
              "Errors of the GPU's memory that were corrected since the driver was loaded.", 1,
              &Gpu::ecc_corrected, &Gpu::sm_mhz},
    GpuFamily{"lockstep_gpu_ecc_uncorrected_errors", MetricType::Gauge,
              "Errors of the GPU's memory that could not be corrected since the driver was loaded.", 1,
              &Gpu::ecc_uncorrected, &Gpu::sm_mhz},
    GpuFamily{"lockstep_gpu_xid_errors_total", MetricType::Counter,
              "Critical errors of GPU or program (Xid) that the driver reported since the rank uses the GPU.",
              1, &Gpu::xid_errors, &Gpu::sm_mhz},
    GpuFamily{"lockstep_gpu_allocator_retries_total", MetricType::Counter,
              "Times that LibTorch's allocator got no memory and freed its unused blocks to get some.", 1,
              &Gpu::allocator_retries, &Gpu::memory_total_bytes},
    GpuFamily{"lockstep_gpu_allocator_unused_bytes", MetricType::Gauge,
              "Memory in the blocks of LibTorch's allocator that is not used.", 1,
              &Gpu::allocator_unused_bytes, &Gpu::memory_total_bytes}};

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

// Compares ranks of this node only; lockstep:straggler_score:ratio (rules) compares the ranks of the whole
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

class RankFamilies {
 public:
  RankFamilies(const std::vector<JobRecords>& jobs, const std::string& node, FamilyStream& stream)
      : stream_(stream) {
    for (const JobRecords& records : jobs) {
      if (records.ranks.empty()) continue;
      const Labels on_node = labels_of(records.job, records.step, node);
      Job& job = jobs_.emplace_back(Job{.records = &records, .labels = on_node, .ranks = {}});
      for (const RankRecord& rank : records.ranks) {
        const std::string number = std::to_string(rank.snapshot.identity.rank);
        job.ranks.push_back({.snapshot = &rank.snapshot, .labels = with(on_node, "rank", number)});
      }
      set_straggler_scores(job);
    }
  }

  void add_ranks() {
    gauge("lockstep_rank_up", "1 while the rank's process runs, 0 after it has ended.",
          [](const Rank& rank) { return std::optional(rank.snapshot->alive ? 1.0 : 0.0); });
    stream_.family("lockstep_step_seconds", MetricType::Histogram, "Duration of training steps.");
    each_rank([&](const Rank& rank) {
      const Counters& counters = rank.snapshot->counters;
      add_histogram(stream_, rank.labels, counters.step_histogram, counters.step_ns);
    });
    stream_.family("lockstep_phase_seconds_total", MetricType::Counter,
                   "Time in each phase of the steps. The phases add up to the steps.");
    each_rank([&](const Rank& rank) {
      for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
        stream_.add(with(rank.labels, "phase", record::kPhaseNames[phase]),
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
    add_resources();
    add_gpus();
    communication("lockstep_comm_transfer_seconds_total", "Communication, hidden behind computation or not.",
                  &Counters::comm_transfer_ns);
    communication("lockstep_comm_wait_seconds_total", "Waiting for a rank that joined a collective later.",
                  &Counters::comm_wait_ns);
    add_collectives();
    gauge("lockstep_last_step_timestamp_seconds",
          "When the last step ended or, before the first step, when the rank started.", [](const Rank& rank) {
            return std::optional(static_cast<double>(rank.snapshot->last_unix_ns()) * kNs);
          });
    gauge("lockstep_loss_scale", "Factor of the loss scaler; 0 without a loss scaler.",
          [](const Rank& rank) { return std::optional(rank.snapshot->counters.loss_scale); });
    gauge(
        "lockstep_straggler_score",
        "Own time per step of the rank over the last 32 steps, divided by the median of the job's ranks on this node. Own time is the step without exposed communication.",
        [](const Rank& rank) {
          return rank.straggler_score > 0 ? std::optional(rank.straggler_score) : std::nullopt;
        });
  }

  void add_jobs() {
    stream_.family("lockstep_job_info", MetricType::Gauge,
                   "A job step with ranks on this node: its user, program and number of ranks.");
    for (const Job& job : jobs_) {
      const record::Identity& first = job.ranks.front().snapshot->identity;
      Labels labels = with(job.labels, "user", job.records->user);
      labels.push_back({"user_name", job.records->user_name});
      labels.push_back({"program", plain(first.program)});
      labels.push_back({"ranks", std::to_string(first.size)});
      stream_.add(std::move(labels), 1);
    }
    stream_.family(
        "lockstep_job_seconds_total", MetricType::Counter,
        "Time of the job's ranks on this node, from their start to their last step or their end, by its use: trained, or lost to a cause.");
    for (const Job& job : jobs_) add_goodput(job);
    stream_.family(
        "lockstep_job_memory_ratio", MetricType::Gauge,
        "Memory of the job's ranks on this node, divided by the limit of their cgroup or node. Files do not count, because the kernel gives them up first; memory that ranks share counts once.");
    for (const Job& job : jobs_) {
      if (const double share = memory_share(job); share > 0) stream_.add(job.labels, share);
    }
    stream_.family("lockstep_job_gpus_granted", MetricType::Gauge, "GPUs of this node that the job may use.");
    for (const Job& job : jobs_) {
      std::uint64_t granted = 0;
      for (const Rank& rank : job.ranks)
        if (rank.snapshot->resources) granted = std::max(granted, rank.snapshot->resources->gpu.granted);
      if (granted > 0) stream_.add(job.labels, static_cast<double>(granted));
    }
    std::vector<std::optional<std::pair<int, double>>> waits;
    for (const Job& job : jobs_) waits.push_back(longest_wait(job));
    const auto each_wait = [&](const auto& value) {
      for (std::size_t i = 0; i < jobs_.size(); ++i) {
        if (waits[i]) stream_.add(jobs_[i].labels, value(*waits[i]));
      }
    };
    stream_.family(
        "lockstep_waited_for_seconds", MetricType::Gauge,
        "Waiting per step over the last 32 steps, mean over the ranks on this node, for the rank that they waited for longest. Absent without waiting, or if it is not measured.");
    each_wait([](const auto& wait) { return wait.second; });
    stream_.family("lockstep_late_rank", MetricType::Gauge,
                   "The rank that the ranks on this node waited for longest over the last 32 steps.");
    each_wait([](const auto& wait) { return static_cast<double>(wait.first); });
    stream_.family(
        "lockstep_phase_duration_seconds", MetricType::Histogram,
        "Time of a step in each phase, over all ranks of the job step on this node. A phase without any time is absent.");
    for (const Job& job : jobs_) {
      for (std::size_t phase = 0; phase < record::kPhases; ++phase) add_phase(job, phase);
    }
  }

 private:
  template <typename Work>
  void each_rank(const Work& work) const {
    for (const Job& job : jobs_) {
      for (const Rank& rank : job.ranks) work(rank);
    }
  }

  template <typename Value>
  void gauge(const char* name, const char* help, const Value& value) {
    stream_.family(name, MetricType::Gauge, help);
    each_rank([&](const Rank& rank) {
      if (const std::optional<double> number = value(rank)) stream_.add(rank.labels, *number);
    });
  }

  void counter(const char* name, const char* help, std::uint64_t Counters::*field) {
    stream_.family(name, MetricType::Counter, help);
    each_rank([&](const Rank& rank) {
      stream_.add(rank.labels, static_cast<double>(rank.snapshot->counters.*field));
    });
  }

  // Without a sample (in the first moments) a rank has none of these.
  void add_resources() {
    const auto family = [&](const char* name, MetricType type, const char* help, const auto& value) {
      stream_.family(name, type, help);
      each_rank([&](const Rank& rank) {
        if (rank.snapshot->resources) stream_.add(rank.labels, value(*rank.snapshot->resources));
      });
    };
    using record::Resources;
    family("lockstep_cpu_user_seconds_total", MetricType::Counter,
           "Processor time of the rank's process in the program, the loader's threads included.",
           [](const Resources& used) { return seconds(used.user_ns); });
    family("lockstep_cpu_system_seconds_total", MetricType::Counter,
           "Processor time of the rank's process in the kernel, the loader's threads included.",
           [](const Resources& used) { return seconds(used.system_ns); });
    family("lockstep_loader_cpu_seconds_total", MetricType::Counter,
           "Processor time of the loader's threads.",
           [](const Resources& used) { return seconds(used.loader_user_ns + used.loader_system_ns); });
    family("lockstep_skipped_samples_total", MetricType::Counter, "Damaged samples that the loader left out.",
           [](const Resources& used) { return static_cast<double>(used.skipped_samples); });
    family("lockstep_memory_bytes", MetricType::Gauge, "Resident memory of the rank's process.",
           [](const Resources& used) { return static_cast<double>(used.memory_bytes); });
    family("lockstep_memory_peak_bytes", MetricType::Gauge, "Maximum of the resident memory.",
           [](const Resources& used) { return static_cast<double>(used.memory_peak_bytes); });
    family("lockstep_memory_limit_bytes", MetricType::Gauge,
           "Memory limit of the rank's cgroup, which may hold several ranks; else the node's memory.",
           [](const Resources& used) { return static_cast<double>(used.memory_limit_bytes); });
    family("lockstep_major_page_faults_total", MetricType::Counter,
           "Pages of the process that were read from a disk.",
           [](const Resources& used) { return static_cast<double>(used.major_faults); });
    family("lockstep_process_read_bytes_total", MetricType::Counter,
           "Bytes that read calls of the process returned.",
           [](const Resources& used) { return static_cast<double>(used.read_bytes); });
    family("lockstep_process_reads_total", MetricType::Counter, "Read calls of the process.",
           [](const Resources& used) { return static_cast<double>(used.read_calls); });
    family("lockstep_involuntary_switches_total", MetricType::Counter,
           "Times that a thread of the process had to give its CPU to another one.",
           [](const Resources& used) { return static_cast<double>(used.involuntary_switches); });
  }

  // Of the kinds that were measured. A bandwidth is the rate of bytes divided by the rate of seconds.
  void add_collectives() {
    const auto family = [&](const char* name, const char* help, const auto& value) {
      stream_.family(name, MetricType::Counter, help);
      each_rank([&](const Rank& rank) {
        if (!rank.snapshot->resources) return;
        for (std::size_t i = 0; i < record::kCollectives; ++i) {
          const record::CollectiveTotals& totals = rank.snapshot->resources->collectives[i];
          if (totals.ns == 0) continue;
          const double factor =
              record::bus_factor(static_cast<record::Collective>(i), rank.snapshot->identity.size);
          stream_.add(with(rank.labels, "collective", record::kCollectiveNames[i]), value(totals, factor));
        }
      });
    };
    using record::CollectiveTotals;
    family(
        "lockstep_collective_bytes_total",
        "Bytes of the step's collectives: divided by their seconds, NCCL's algorithm bandwidth.",
        [](const CollectiveTotals& totals, double /*factor*/) { return static_cast<double>(totals.bytes); });
    family(
        "lockstep_collective_bus_bytes_total",
        "These bytes times the factor for this number of ranks: divided by their seconds, NCCL's bus bandwidth.",
        [](const CollectiveTotals& totals, double factor) {
          return factor * static_cast<double>(totals.bytes);
        });
    family("lockstep_collective_seconds_total",
           "Time in which the step's collectives moved data, without waiting for later ranks.",
           [](const CollectiveTotals& totals, double /*factor*/) { return seconds(totals.ns); });
  }

  // Of ranks on a GPU that NVML shows. What the GPU does not tell is absent.
  void add_gpus() {
    const auto each_gpu = [&](const auto& work) {
      each_rank([&](const Rank& rank) {
        const auto& resources = rank.snapshot->resources;
        if (resources && resources->gpu.sampled()) work(rank, resources->gpu);
      });
    };
    stream_.family("lockstep_gpu_info", MetricType::Gauge, "The rank's GPU by its UUID.");
    each_gpu([&](const Rank& rank, const record::Gpu& gpu) {
      stream_.add(with(rank.labels, "uuid", record::uuid_text(gpu)), 1);
    });
    for (const GpuFamily& family : kGpuFamilies) {
      stream_.family(family.name, family.type, family.help);
      each_gpu([&](const Rank& rank, const record::Gpu& gpu) {
        if (gpu.*family.known == 0) return;
        stream_.add(rank.labels, family.unit * static_cast<double>(gpu.*family.value));
      });
    }
  }

  void communication(const char* name, const char* help, std::uint64_t Counters::*field) {
    stream_.family(name, MetricType::Counter, help);
    each_rank([&](const Rank& rank) {
      const Counters& counters = rank.snapshot->counters;
      if (counters.communication_measured()) stream_.add(rank.labels, seconds(counters.*field));
    });
  }

  // One rank only: a series for each pair of ranks would be too many.
  static std::optional<std::pair<int, double>> longest_wait(const Job& job) {
    std::map<int, double> waits;
    for (const RankRecord& rank : job.records->ranks) {
      for (const auto& [late, seconds] : rank.waits) {
        waits[late] += seconds / static_cast<double>(job.records->ranks.size());
      }
    }
    return record::longest_wait(waits);
  }

  // The largest share of a cgroup's limit. 0: not known.
  static double memory_share(const Job& job) {
    struct Use {
      std::uint64_t own = 0;
      std::uint64_t shared = 0;
      std::uint64_t limit = 0;
    };
    std::map<std::uint64_t, Use> groups;
    for (const Rank& rank : job.ranks) {
      const auto& used = rank.snapshot->resources;
      if (!used || used->memory_limit_bytes == 0) continue;
      Use& use = groups[used->memory_group];
      use.own += used->memory_bytes -
                 std::min(used->memory_bytes, used->memory_file_bytes + used->memory_shared_bytes);
      use.shared = std::max(use.shared, used->memory_shared_bytes);
      use.limit = used->memory_limit_bytes;
    }
    double share = 0;
    for (const auto& [group, use] : groups)
      share = std::max(share, static_cast<double>(use.own + use.shared) / static_cast<double>(use.limit));
    return share;
  }

  // Skipped steps count as trained: a share that changes later would make counters fall.
  void add_goodput(const Job& job) {
    double trained = 0;
    std::array<double, record::kLostTimes.size()> lost{};
    for (const Rank& rank : job.ranks) {
      const record::Snapshot& own = *rank.snapshot;
      const std::optional<record::Resources>& resources = own.resources;
      if (own.counters.steps == 0 || (resources && resources->first_step_ns == 0)) continue;
      const std::int64_t end = own.finished_unix_ns != 0 ? own.finished_unix_ns : own.last_unix_ns();
      const record::Goodput goodput =
          record::goodput_of(own, static_cast<double>(end - own.start_unix_ns) * kNs);
      trained += goodput.seconds * (goodput.trained + goodput.skipped);
      for (std::size_t i = 0; i < lost.size(); ++i)
        lost.at(i) += goodput.seconds * (goodput.*record::kLostTimes.at(i).second);
    }
    const auto add = [&](std::string cause, double value) {
      Labels labels = with(job.labels, "user_name", job.records->user_name);
      labels.push_back({"cause", std::move(cause)});
      stream_.add(std::move(labels), value);
    };
    add("trained", trained);
    for (std::size_t i = 0; i < lost.size(); ++i) {
      std::string cause = record::kLostTimes.at(i).first;
      std::replace(cause.begin(), cause.end(), ' ', '_');
      if (cause != "skipped") add(std::move(cause), lost.at(i));
    }
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
      add_histogram(stream_, with(job.labels, "phase", record::kPhaseNames[phase]), counts, sum_ns);
  }

  FamilyStream& stream_;
  std::vector<Job> jobs_;
};

}  // namespace

std::size_t series_per_rank() {
  return kBounds + 3 + record::kPhases + 23 + 3 * record::kCollectives + 1 + kGpuFamilies.size();
}

Labels labels_of(const std::string& job, const std::string& step, const std::string& node) {
  return {{"job_id", job}, {"step_id", step}, {"node", node}};
}

void stream_rank_families(const std::vector<JobRecords>& jobs, const std::string& node,
                          FamilyStream& stream) {
  RankFamilies families(jobs, node, stream);
  families.add_ranks();
  families.add_jobs();
}

}  // namespace lockstep::exporter
