#include "exporters/families/rank_families.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <type_traits>
#include <utility>

#include "common/statistics.h"
#include "exporters/record/goodput.h"

namespace lockstep::exporter {
namespace {

using prometheus::MetricType;
using record::CollectiveTotals;
using record::Counters;
using record::Gpu;
using record::Resources;
using record::Snapshot;

constexpr double kOne = 1;
constexpr double kNs = 1e-9;
constexpr double kMilli = 1e-3;
constexpr double kMega = 1e6;

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
  stream.add(std::move(labels), kServedBounds, cumulative, kNs * static_cast<double>(sum_ns));
}

// Where the series of a job step on this node go.
struct JobSeries {
  FamilyStream& stream;
  const JobRecords& job;
  Labels labels;

  void add(double value) const { stream.add(labels, value); }
  Labels labels_of(const Snapshot& rank) const {
    return with(labels, "rank", std::to_string(rank.identity.rank));
  }
};

// Below are the values of ranks. Without a sample (in the first moments) a rank has no Resources.
using Value = std::optional<double>;

template <auto Field, const double& Unit = kOne>
Value number(const Snapshot& rank) {
  if constexpr (std::is_invocable_v<decltype(Field), const Counters&>) {
    return Unit * static_cast<double>(rank.counters.*Field);
  } else {
    return rank.resources ? Value(Unit * static_cast<double>(*rank.resources.*Field)) : std::nullopt;
  }
}

// What the GPU does not tell is absent: then `Known` is 0.
template <auto Field, auto Known, const double& Unit = kOne>
Value of_gpu(const Snapshot& rank) {
  if (!rank.resources || !rank.resources->gpu.sampled() || rank.resources->gpu.*Known == 0) return {};
  return Unit * static_cast<double>(rank.resources->gpu.*Field);
}

template <auto Field>
Value communication(const Snapshot& rank) {
  return rank.counters.communication_measured() ? number<Field, kNs>(rank) : std::nullopt;
}

// And below is what a family adds for a job step.
void add_step_histograms(const JobSeries& to) {
  for (const Snapshot& rank : to.job.ranks)
    add_histogram(to.stream, to.labels_of(rank), rank.counters.step_histogram, rank.counters.step_ns);
}

double bytes_of(const CollectiveTotals& totals, double /*bus_factor*/) {
  return static_cast<double>(totals.bytes);
}
double bus_bytes_of(const CollectiveTotals& totals, double bus_factor) {
  return bus_factor * static_cast<double>(totals.bytes);
}
double seconds_of(const CollectiveTotals& totals, double /*bus_factor*/) {
  return kNs * static_cast<double>(totals.ns);
}

// Of the kinds that were measured. A bandwidth is the rate of bytes divided by the rate of seconds.
template <double (*Figure)(const CollectiveTotals& totals, double bus_factor)>
void of_collectives(const JobSeries& to) {
  for (const Snapshot& rank : to.job.ranks) {
    for (std::size_t i = 0; rank.resources && i < record::kCollectives; ++i) {
      const CollectiveTotals& totals = rank.resources->collectives[i];
      if (totals.ns == 0) continue;
      const double factor = record::bus_factor(static_cast<record::Collective>(i), rank.identity.size);
      to.stream.add(with(to.labels_of(rank), "collective", record::kCollectiveNames[i]),
                    Figure(totals, factor));
    }
  }
}

void add_phases(const JobSeries& to) {
  for (const Snapshot& rank : to.job.ranks) {
    const Labels labels = to.labels_of(rank);
    for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
      to.stream.add(with(labels, "phase", record::kPhaseNames[phase]),
                    kNs * static_cast<double>(rank.counters.phase_ns[phase]));
    }
  }
}

// Compares ranks of this node only; lockstep:straggler_score:ratio (rules) compares the ranks of the whole
// job.
void add_straggler_scores(const JobSeries& to) {
  std::vector<double> own;
  for (const Snapshot& rank : to.job.ranks) {
    if (rank.recent_own_seconds > 0) own.push_back(rank.recent_own_seconds);
  }
  const double middle = median(std::move(own));
  for (const Snapshot& rank : to.job.ranks) {
    if (rank.recent_own_seconds > 0) to.stream.add(to.labels_of(rank), rank.recent_own_seconds / middle);
  }
}

void add_info(const JobSeries& to) {
  const record::Identity& first = to.job.ranks.front().identity;
  // Users choose program names; anything but plain text would be hard to use in a query.
  std::string program = first.program;
  for (char& c : program) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '_';
  }
  Labels labels = with(to.labels, "user", to.job.user);
  labels.push_back({"user_name", to.job.user_name});
  labels.push_back({"program", std::move(program)});
  labels.push_back({"ranks", std::to_string(first.size)});
  to.stream.add(std::move(labels), 1);
}

// Skipped steps count as trained: a share that changes later would make counters fall.
void add_goodput(const JobSeries& to) {
  double trained = 0;
  std::array<double, record::kLostTimes.size()> lost{};
  for (const Snapshot& rank : to.job.ranks) {
    if (rank.counters.steps == 0 || (rank.resources && rank.resources->first_step_ns == 0)) continue;
    const std::int64_t end = rank.finished_unix_ns != 0 ? rank.finished_unix_ns : rank.last_unix_ns();
    const record::Goodput goodput =
        record::goodput_of(rank, static_cast<double>(end - rank.start_unix_ns) * kNs);
    trained += goodput.seconds * (goodput.trained + goodput.skipped);
    for (std::size_t i = 0; i < lost.size(); ++i)
      lost.at(i) += goodput.seconds * (goodput.*record::kLostTimes.at(i).second);
  }
  const auto add = [&](std::string cause, double value) {
    Labels labels = with(to.labels, "user_name", to.job.user_name);
    labels.push_back({"cause", std::move(cause)});
    to.stream.add(std::move(labels), value);
  };
  add("trained", trained);
  for (std::size_t i = 0; i < lost.size(); ++i) {
    std::string cause = record::kLostTimes.at(i).first;
    std::replace(cause.begin(), cause.end(), ' ', '_');
    if (cause != "skipped") add(std::move(cause), lost.at(i));
  }
}

// The largest share of a cgroup's limit.
void add_memory_share(const JobSeries& to) {
  struct Use {
    std::uint64_t own = 0;
    std::uint64_t shared = 0;
    std::uint64_t limit = 0;
  };
  std::map<std::uint64_t, Use> groups;
  for (const Snapshot& rank : to.job.ranks) {
    const auto& used = rank.resources;
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
  if (share > 0) to.add(share);
}

void add_granted_gpus(const JobSeries& to) {
  std::uint64_t granted = 0;
  for (const Snapshot& rank : to.job.ranks)
    if (rank.resources) granted = std::max(granted, rank.resources->gpu.granted);
  if (granted > 0) to.add(static_cast<double>(granted));
}

// One rank only: a series for each pair of ranks would be too many.
std::optional<std::pair<int, double>> longest_wait(const JobRecords& job) {
  std::map<int, double> waits;
  for (const Snapshot& rank : job.ranks) {
    for (const auto& [late, seconds] : rank.recent_waits) {
      waits[late] += seconds / static_cast<double>(job.ranks.size());
    }
  }
  return record::longest_wait(waits);
}

void add_phase_histograms(const JobSeries& to) {
  for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
    record::Histogram counts{};
    std::uint64_t sum_ns = 0;
    for (const Snapshot& rank : to.job.ranks) {
      sum_ns += rank.counters.phase_ns[phase];
      for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += rank.counters.phase_histogram[phase][i];
    }
    if (sum_ns > 0)
      add_histogram(to.stream, with(to.labels, "phase", record::kPhaseNames[phase]), counts, sum_ns);
  }
}

constexpr auto kCounter = MetricType::Counter;
constexpr auto kGauge = MetricType::Gauge;

struct Family {
  const char* name;
  MetricType type;
  const char* help;
  Value (*of_rank)(const Snapshot& rank);  // a rank's only series, if it has a value; nullptr: see `add`
  void (*add)(const JobSeries& to) = nullptr;
};

// In the order of the page.
constexpr auto kFamilies = std::to_array<Family>(
    {{"lockstep_rank_up", kGauge, "1 while the rank's process runs, 0 after it has ended.",
      [](const Snapshot& rank) -> Value { return rank.alive ? 1 : 0; }},
     {"lockstep_step_seconds", MetricType::Histogram, "Duration of training steps.", nullptr,
      add_step_histograms},
     {"lockstep_phase_seconds_total", kCounter,
      "Time in each phase of the steps. The phases add up to the steps.", nullptr, add_phases},
     {"lockstep_steps_total", kCounter, "Training steps.", number<&Counters::steps>},
     {"lockstep_tokens_total", kCounter, "Tokens trained on, without padding.", number<&Counters::tokens>},
     {"lockstep_samples_total", kCounter, "Samples trained on.", number<&Counters::samples>},
     {"lockstep_padding_tokens_total", kCounter, "Padding tokens that were computed on.",
      number<&Counters::padding>},
     {"lockstep_skipped_steps_total", kCounter, "Steps that the loss scaler skipped.",
      number<&Counters::skipped_steps>},
     {"lockstep_read_bytes_total", kCounter, "Bytes that the loader read from packed files.",
      number<&Counters::bytes_read>},
     {"lockstep_cpu_user_seconds_total", kCounter,
      "Processor time of the rank's process in the program, the loader's threads included.",
      number<&Resources::user_ns, kNs>},
     {"lockstep_cpu_system_seconds_total", kCounter,
      "Processor time of the rank's process in the kernel, the loader's threads included.",
      number<&Resources::system_ns, kNs>},
     {"lockstep_loader_cpu_seconds_total", kCounter, "Processor time of the loader's threads.",
      [](const Snapshot& rank) -> Value {
        if (!rank.resources) return {};
        return kNs * static_cast<double>(rank.resources->loader_user_ns + rank.resources->loader_system_ns);
      }},
     {"lockstep_skipped_samples_total", kCounter, "Damaged samples that the loader left out.",
      number<&Resources::skipped_samples>},
     {"lockstep_memory_bytes", kGauge, "Resident memory of the rank's process.",
      number<&Resources::memory_bytes>},
     {"lockstep_memory_peak_bytes", kGauge, "Maximum of the resident memory.",
      number<&Resources::memory_peak_bytes>},
     {"lockstep_memory_limit_bytes", kGauge,
      "Memory limit of the rank's cgroup, which may hold several ranks; else the node's memory.",
      number<&Resources::memory_limit_bytes>},
     {"lockstep_major_page_faults_total", kCounter, "Pages of the process that were read from a disk.",
      number<&Resources::major_faults>},
     {"lockstep_process_read_bytes_total", kCounter, "Bytes that read calls of the process returned.",
      number<&Resources::read_bytes>},
     {"lockstep_process_reads_total", kCounter, "Read calls of the process.", number<&Resources::read_calls>},
     {"lockstep_involuntary_switches_total", kCounter,
      "Times that a thread of the process had to give its CPU to another one.",
      number<&Resources::involuntary_switches>},
     {"lockstep_gpu_info", kGauge, "The rank's GPU by its UUID.", nullptr,
      [](const JobSeries& to) {
        for (const Snapshot& rank : to.job.ranks) {
          if (rank.resources && rank.resources->gpu.sampled())
            to.stream.add(with(to.labels_of(rank), "uuid", record::uuid_text(rank.resources->gpu)), 1);
        }
      }},
     {"lockstep_gpu_memory_bytes", kGauge, "Memory of the rank's GPU in use, by all processes.",
      of_gpu<&Gpu::memory_bytes, &Gpu::memory_total_bytes>},
     {"lockstep_gpu_memory_total_bytes", kGauge, "Memory of the rank's GPU.",
      of_gpu<&Gpu::memory_total_bytes, &Gpu::memory_total_bytes>},
     {"lockstep_gpu_measured_seconds_total", kCounter,
      "Time since the first step in which the rank's GPU was sampled.",
      of_gpu<&Gpu::measured_ns, &Gpu::measured_ns, kNs>},
     {"lockstep_gpu_busy_seconds_total", kCounter, "Part of it in which a kernel ran on the GPU.",
      of_gpu<&Gpu::busy_ns, &Gpu::measured_ns, kNs>},
     {"lockstep_gpu_slowed_seconds_total", kCounter,
      "Part of it with lower clocks because of heat or of the power supply.",
      of_gpu<&Gpu::slowed_ns, &Gpu::measured_ns, kNs>},
     {"lockstep_gpu_power_capped_seconds_total", kCounter,
      "Part of it with lower clocks because of the power limit.",
      of_gpu<&Gpu::capped_ns, &Gpu::measured_ns, kNs>},
     {"lockstep_gpu_sm_clock_hertz", kGauge, "Clock of the GPU's multiprocessors.",
      of_gpu<&Gpu::sm_mhz, &Gpu::sm_mhz, kMega>},
     {"lockstep_gpu_power_watts", kGauge, "Power that the GPU draws.",
      of_gpu<&Gpu::power_mw, &Gpu::power_mw, kMilli>},
     {"lockstep_gpu_energy_joules_total", kCounter, "Energy of the GPU since the rank uses it.",
      of_gpu<&Gpu::energy_mj, &Gpu::energy_mj, kMilli>},
     {"lockstep_gpu_ecc_corrected_errors", kGauge,
      "Errors of the GPU's memory that were corrected since the driver was loaded.",
      of_gpu<&Gpu::ecc_corrected, &Gpu::sm_mhz>},
     {"lockstep_gpu_ecc_uncorrected_errors", kGauge,
      "Errors of the GPU's memory that could not be corrected since the driver was loaded.",
      of_gpu<&Gpu::ecc_uncorrected, &Gpu::sm_mhz>},
     {"lockstep_gpu_xid_errors_total", kCounter,
      "Critical errors of GPU or program (Xid) that the driver reported since the rank uses the GPU.",
      of_gpu<&Gpu::xid_errors, &Gpu::sm_mhz>},
     {"lockstep_gpu_allocator_retries_total", kCounter,
      "Times that LibTorch's allocator got no memory and freed its unused blocks to get some.",
      of_gpu<&Gpu::allocator_retries, &Gpu::memory_total_bytes>},
     {"lockstep_gpu_allocator_unused_bytes", kGauge,
      "Memory in the blocks of LibTorch's allocator that is not used.",
      of_gpu<&Gpu::allocator_unused_bytes, &Gpu::memory_total_bytes>},
     {"lockstep_comm_transfer_seconds_total", kCounter, "Communication, hidden behind computation or not.",
      communication<&Counters::comm_transfer_ns>},
     {"lockstep_comm_wait_seconds_total", kCounter, "Waiting for a rank that joined a collective later.",
      communication<&Counters::comm_wait_ns>},
     {"lockstep_collective_bytes_total", kCounter,
      "Bytes of the step's collectives: divided by their seconds, NCCL's algorithm bandwidth.",
      nullptr, of_collectives<bytes_of>},
     {"lockstep_collective_bus_bytes_total", kCounter,
      "These bytes times the factor for this number of ranks: divided by their seconds, NCCL's bus bandwidth.",
      nullptr, of_collectives<bus_bytes_of>},
     {"lockstep_collective_seconds_total", kCounter,
      "Time in which the step's collectives moved data, without waiting for later ranks.",
      nullptr, of_collectives<seconds_of>},
     {"lockstep_last_step_timestamp_seconds", kGauge,
      "When the last step ended or, before the first step, when the rank started.",
      [](const Snapshot& rank) -> Value { return static_cast<double>(rank.last_unix_ns()) * kNs; }},
     {"lockstep_loss_scale", kGauge, "Factor of the loss scaler; 0 without a loss scaler.",
      number<&Counters::loss_scale>},
     {"lockstep_straggler_score", kGauge,
      "Own time per step of the rank over the last 32 steps, divided by the median of the job's ranks on this node. Own time is the step without exposed communication.",
      nullptr, add_straggler_scores},
     {"lockstep_job_info", kGauge,
      "A job step with ranks on this node: its user, program and number of ranks.", nullptr, add_info},
     {"lockstep_job_seconds_total", kCounter,
      "Time of the job's ranks on this node, from their start to their last step or their end, by its use: trained, or lost to a cause.",
      nullptr, add_goodput},
     {"lockstep_job_memory_ratio", kGauge,
      "Memory of the job's ranks on this node, divided by the limit of their cgroup or node. Files do not count, because the kernel gives them up first; memory that ranks share counts once.",
      nullptr, add_memory_share},
     {"lockstep_job_gpus_granted", kGauge, "GPUs of this node that the job may use.", nullptr, add_granted_gpus},
     {"lockstep_waited_for_seconds", kGauge,
      "Waiting per step over the last 32 steps, mean over the ranks on this node, for the rank that they waited for longest. Absent without waiting, or if it is not measured.",
      nullptr,
      [](const JobSeries& to) {
        if (const auto wait = longest_wait(to.job)) to.add(wait->second);
      }},
     {"lockstep_late_rank", kGauge,
      "The rank that the ranks on this node waited for longest over the last 32 steps.",
      nullptr,
      [](const JobSeries& to) {
        if (const auto wait = longest_wait(to.job)) to.add(static_cast<double>(wait->first));
      }},
     {"lockstep_phase_duration_seconds", MetricType::Histogram,
      "Time of a step in each phase, over all ranks of the job step on this node. A phase without any time is absent.",
      nullptr, add_phase_histograms}});

}  // namespace

std::size_t series_per_rank() {
  const auto single = std::count_if(kFamilies.begin(), kFamilies.end(),
                                    [](const Family& family) { return family.of_rank != nullptr; });
  constexpr std::size_t kOthers = 2;  // lockstep_gpu_info, lockstep_straggler_score
  return kBounds + 3 + record::kPhases + 3 * record::kCollectives + static_cast<std::size_t>(single) +
         kOthers;
}

Labels labels_of(const std::string& job, const std::string& step, const std::string& node) {
  return {{"job_id", job}, {"step_id", step}, {"node", node}};
}

Labels with(const Labels& labels, std::string_view name, std::string_view value) {
  Labels more;
  more.reserve(labels.size() + 1);
  more = labels;
  more.push_back({std::string(name), std::string(value)});
  return more;
}

void FamilyStream::family(std::string_view name, MetricType type, std::string_view help) {
  finish();
  family_.name = name;
  family_.type = type;
  family_.help = help;
}

void FamilyStream::add(Labels labels, double value) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

void FamilyStream::add(Labels labels, std::span<const double> bounds,
                       std::span<const std::uint64_t> cumulative, double sum) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label = std::move(labels);
  metric.histogram.sample_count = cumulative.back();
  metric.histogram.sample_sum = sum;
  metric.histogram.bucket.reserve(cumulative.size());
  for (std::size_t i = 0; i < cumulative.size(); ++i) {
    metric.histogram.bucket.push_back(
        {.cumulative_count = cumulative[i],
         .upper_bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
  }
}

void FamilyStream::finish() {
  if (!family_.metric.empty()) sink_(std::exchange(family_, {}));
}

void stream_rank_families(const std::vector<JobRecords>& jobs, const std::string& node,
                          FamilyStream& stream) {
  for (const Family& family : kFamilies) {
    stream.family(family.name, family.type, family.help);
    for (const JobRecords& job : jobs) {
      if (job.ranks.empty()) continue;
      const JobSeries to{stream, job, labels_of(job.job, job.step, node)};
      if (family.add != nullptr) family.add(to);
      for (const Snapshot& rank : job.ranks) {
        const Value value = family.of_rank == nullptr ? std::nullopt : family.of_rank(rank);
        if (value) stream.add(to.labels_of(rank), *value);
      }
    }
  }
}

}  // namespace lockstep::exporter
