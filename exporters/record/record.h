// The record's file, byte by byte: the Writer maps it, the Reader reads it with pread. There is one file per
// rank, on a memory file system, little-endian, with only 8-byte words after the header.
//
//   Header       written once, before the file gets its name; never changes
//   Live         the number of publications, and what the rank is doing now
//   Resources    what the process uses, once a second
//   Counters[2]  totals since the start; publication n (from 1) is in Counters[n % 2]
//   Step[512]    the last steps; step i (from 0) is in Step[i % 512]
//
// The writer fills the copy of the counters that readers do not use, then increments the number of
// publications. So a rank that is killed at any moment leaves its last complete step, and a reader that was
// overtaken notices it by that number. The words of Resources are stored one by one, so a reader may see some of one
// sample and some of the next.
//
// A change needs a new kVersion. Readers read this version only.
//
// Threads: one Writer; any number of Readers, in other processes too. Values have no shared state.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/leaf/error.h"
#include "common/leaf/unique_fd.h"

namespace lockstep::record {

// The phases of a training step. They add up to the step: time that belongs to no other phase is `other`.
enum class Phase : std::uint32_t {
  data_wait,       ///< the training loop waited for the loader
  host_to_device,  ///< copying the batch to the device
  forward,
  backward,      ///< without communication that did not overlap with it
  comm_exposed,  ///< communication that the step had to wait for
  optimizer,
  checkpoint,
  other,  ///< the rest of the step
};

inline constexpr std::size_t kPhases = 8;

/// The names in the order of Phase, as metrics, tables and JSON show them.
inline constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "data_wait", "host_to_device", "forward", "backward", "comm_exposed", "optimizer", "checkpoint", "other",
};

constexpr std::size_t index(Phase phase) {
  return static_cast<std::size_t>(phase);
}
constexpr std::string_view name(Phase phase) {
  return kPhaseNames[index(phase)];
}

// The collectives of a step. Bandwidths are defined as by NCCL's tests: the algorithm's is bytes ÷ time, where a
// reduce-scatter or all-gather counts the bytes of all ranks' parts. The bus's is that times bus_factor(): what each rank
// must send at least, so it can be compared with a link, and with other numbers of ranks.
enum class Collective : std::uint32_t { all_reduce, reduce_scatter, all_gather, broadcast };

inline constexpr std::size_t kCollectives = 4;

/// The names in the order of Collective.
inline constexpr std::array<std::string_view, kCollectives> kCollectiveNames = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast"};

constexpr double bus_factor(Collective collective, int ranks) {
  if (collective == Collective::broadcast) return 1;
  const double others = ranks > 0 ? 1 - 1.0 / ranks : 0;
  return collective == Collective::all_reduce ? 2 * others : others;
}

inline constexpr std::array<char, 8> kMagic = {'L', 'O', 'C', 'K', 'S', 'T', 'E', 'P'};
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::size_t kRingSteps = 512;
inline constexpr std::size_t kNameBytes = 64;  ///< of the node and program names, with a terminating zero

/// Upper bounds of the histograms' buckets in nanoseconds, 100 us to 100 s, six in each decade. A bucket
/// counts times up to its bound and above the previous bound; one more bucket counts longer times.
inline constexpr std::array<std::uint64_t, 37> kBucketBounds = [] {
  constexpr std::array<std::uint64_t, 6> kDecade = {100'000, 150'000, 200'000, 300'000, 500'000, 700'000};
  std::array<std::uint64_t, 37> bounds{};
  std::uint64_t scale = 1;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = kDecade[i % kDecade.size()] * scale;
    if (i % kDecade.size() == kDecade.size() - 1) scale *= 10;
  }
  return bounds;
}();
inline constexpr std::size_t kBuckets = kBucketBounds.size() + 1;

/// Occurrences per bucket, not cumulative.
using Histogram = std::array<std::uint64_t, kBuckets>;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t header_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t job_id = 0;
  std::uint32_t step_id = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t local_rank = 0;
  std::int64_t process_id = 0;
  std::int64_t start_unix_ns = 0;        ///< CLOCK_REALTIME when the record was made
  std::uint64_t start_monotonic_ns = 0;  ///< CLOCK_MONOTONIC at the same moment
  std::array<char, kNameBytes> node{};
  std::array<char, kNameBytes> program{};
};

struct Live {
  std::uint64_t publications = 0;
  std::int64_t finished_unix_ns = 0;  ///< 0 until the rank has finished
  std::uint64_t phase = kPhases;      ///< the current phase of the rank; kPhases between phases
  std::uint64_t phase_since_ns = 0;   ///< CLOCK_MONOTONIC
};

/// The GPU on which the rank computes, as NVML tells (docs/users/gpus.md). 0: not known.
struct Gpu {
  std::uint64_t granted = 0;  ///< GPUs of this node that the job may use
  std::array<std::uint64_t, 2> uuid{};
  std::uint64_t memory_bytes = 0;       ///< in use, by other processes too
  std::uint64_t memory_peak_bytes = 0;  ///< the maximum of it in all samples
  std::uint64_t memory_total_bytes = 0;
  std::uint64_t busy_percent = 0;  ///< of the time before the sample: a kernel ran
  std::uint64_t measured_ns = 0;   ///< since the first step ended; the next three are parts of it
  std::uint64_t busy_ns = 0;
  std::uint64_t slowed_ns = 0;  ///< lower clocks because of heat or of the power supply
  std::uint64_t capped_ns = 0;  ///< lower clocks because of the power limit
  std::uint64_t throttle_reasons =
      0;  ///< all since the first step ended, as bits of nvmlClocksThrottleReasons
  std::uint64_t sm_mhz = 0;
  std::uint64_t sm_max_mhz = 0;
  std::uint64_t memory_mhz = 0;
  std::uint64_t power_mw = 0;
  std::uint64_t energy_mj = 0;  ///< of the GPU since the rank uses it
  std::uint64_t ecc_corrected = 0;
  std::uint64_t ecc_uncorrected = 0;  ///< both since the driver was loaded
  std::uint64_t xid_errors = 0;       ///< critical errors of GPU or program (Xid) since the rank uses it
  std::uint64_t last_xid = 0;         ///< the number of the newest one
  std::uint64_t allocator_retries =
      0;  ///< LibTorch's allocator got no memory, and freed its unused blocks to get some
  std::uint64_t allocator_unused_bytes = 0;  ///< of its blocks, at the sample

  bool sampled() const { return uuid[0] != 0 || uuid[1] != 0; }
  double busy() const { return share(busy_ns); }
  double slowed() const { return share(slowed_ns); }
  double capped() const { return share(capped_ns); }

 private:
  double share(std::uint64_t ns) const {
    return measured_ns == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(measured_ns);
  }
};

/// Of one kind, without waiting for ranks that came later.
struct CollectiveTotals {
  std::uint64_t bytes = 0;
  std::uint64_t ns = 0;

  double algorithm_bandwidth() const {  ///< bytes per second; 0: not measured
    return ns == 0 ? 0 : static_cast<double>(bytes) * 1e9 / static_cast<double>(ns);
  }
};

/// What the rank's process uses and may use. Totals since the start of the process; times in nanoseconds.
struct Resources {
  std::uint64_t sampled_ns = 0;      ///< CLOCK_MONOTONIC; 0: there is no sample
  std::uint64_t user_ns = 0;         ///< processor time of all threads in the program
  std::uint64_t system_ns = 0;       ///< and in the kernel
  std::uint64_t loader_user_ns = 0;  ///< part of it: the loader's threads
  std::uint64_t loader_system_ns = 0;
  std::uint64_t loader_delay_ns = 0;      ///< time that they were ready to run and had no CPU
  std::uint64_t loader_build_ns = 0;      ///< time that these threads built batches, reading included
  std::uint64_t loader_buffer_bytes = 0;  ///< the maximum memory of the loader's batches
  std::uint64_t memory_bytes = 0;         ///< resident
  std::uint64_t memory_peak_bytes = 0;    ///< the maximum of it
  std::uint64_t memory_file_bytes = 0;    ///< of the resident memory: files, which the kernel can give up
  std::uint64_t memory_shared_bytes = 0;  ///< of the resident memory: shared with other ranks
  std::uint64_t memory_limit_bytes = 0;   ///< of its cgroup, else of the node; 0: unknown
  std::uint64_t memory_group = 0;         ///< tells this cgroup from others of the node; 0: the node's memory
  std::uint64_t major_faults = 0;         ///< pages that were read from a disk
  std::uint64_t read_bytes = 0;           ///< that read calls returned, from files and pipes
  std::uint64_t read_calls = 0;
  std::uint64_t storage_read_bytes = 0;    ///< that the kernel fetched from storage for this process
  std::uint64_t voluntary_switches = 0;    ///< a thread waited
  std::uint64_t involuntary_switches = 0;  ///< another thread got the CPU
  std::uint64_t first_step_ns = 0;         ///< CLOCK_MONOTONIC when the first step began; 0: none has ended
  std::uint64_t launch_ns = 0;             ///< of computing phases in which a device waited for the host
  std::uint64_t on_device = 0;             ///< 1: the phases are those of a device
  double cpu_limit = 0;                    ///< CPUs of its cgroup; 0: not limited
  Gpu gpu{};
  std::array<CollectiveTotals, kCollectives> collectives{};  ///< in the order of Collective
  std::uint64_t skipped_samples = 0;                         ///< damaged ones that the loader left out
};

/// Totals since the start of the rank. Times in nanoseconds.
struct Counters {
  std::uint64_t steps = 0;
  std::uint64_t step_ns = 0;
  std::array<std::uint64_t, kPhases> phase_ns{};  ///< add up to step_ns
  std::uint64_t comm_transfer_ns = 0;             ///< communication, hidden or not
  std::uint64_t comm_wait_ns = 0;                 ///< part of it: waiting for a rank that came later
  std::uint64_t tokens = 0;
  std::uint64_t samples = 0;
  std::uint64_t padding = 0;           ///< padding tokens, not in `tokens`
  std::uint64_t skipped_steps = 0;     ///< by the loss scaler, for infinite gradients
  std::uint64_t bytes_read = 0;        ///< by the loader, from packed files
  std::uint64_t from_python = 0;       ///< 1: lockstep.py wrote the record
  double loss_scale = 0;               ///< 0: no loss scaler
  std::uint64_t last_step_end_ns = 0;  ///< CLOCK_MONOTONIC
  Histogram step_histogram{};
  std::array<Histogram, kPhases> phase_histogram{};
  double cost_ratio = 0;  ///< a / b of the planner's cost a*L + b*L*L; infinite if b is 0; 0: no plan

  /// Whether the writer measures communication. If not, the zeros mean nothing and are not shown.
  bool communication_measured() const { return comm_transfer_ns != 0 || comm_wait_ns != 0; }
};

/// One of the last steps. Times in nanoseconds.
struct Step {
  std::uint64_t index = 0;
  std::uint64_t end_ns = 0;  ///< CLOCK_MONOTONIC
  std::uint64_t step_ns = 0;
  std::array<std::uint64_t, kPhases> phase_ns{};
  std::uint64_t comm_transfer_ns = 0;
  std::uint64_t comm_wait_ns = 0;
  std::int64_t late_rank = -1;  ///< the rank that this step waited for longest; -1: none or unknown
  std::uint64_t tokens = 0;
  std::uint64_t padding = 0;
  std::uint64_t squares = 0;  ///< sum of the samples' squared lengths, of padded rows if padded; 0: unknown

  /// The step without exposed communication, because that is where a rank waits for others.
  std::uint64_t own_ns() const {
    return step_ns - std::min(step_ns, phase_ns[record::index(Phase::comm_exposed)]);
  }
  double own_ms() const { return static_cast<double>(own_ns()) * 1e-6; }
  double phase_ms(Phase phase) const { return static_cast<double>(phase_ns[record::index(phase)]) * 1e-6; }
};

struct File {
  alignas(4096) Header header;
  alignas(512) Live live;
  alignas(1024) Resources resources;
  alignas(4096) std::array<Counters, 2> counters;
  alignas(4096) std::array<Step, kRingSteps> ring;
};

static_assert(sizeof(Header) == 200 && sizeof(Live) == 32 && sizeof(Resources) == 448 && sizeof(Step) == 136);
static_assert(offsetof(File, live) == 512 && offsetof(File, resources) == 1024 &&
              offsetof(File, counters) == 4096 && offsetof(File, ring) == 12288);
static_assert(std::is_trivially_copyable_v<File>);

/// The rank that writes the record.
struct Identity {
  std::uint64_t job_id = 0;  ///< 0: no scheduler
  std::uint32_t step_id = 0;
  int rank = 0;
  int size = 1;  ///< ranks of the job
  int local_rank = 0;
  std::string node{};
  std::string program{};
};

/// The amount of work in a step.
struct StepCounts {
  std::uint64_t tokens = 0;
  std::uint64_t samples = 0;
  std::uint64_t padding = 0;  ///< padding tokens, not in `tokens`
  std::uint64_t squares = 0;  ///< as in Step

  StepCounts& operator+=(const StepCounts& other) {
    tokens += other.tokens;
    samples += other.samples;
    padding += other.padding;
    squares += other.squares;
    return *this;
  }
};

/// The work of a loader's thread on a batch, in nanoseconds.
struct LoaderWork {
  std::uint64_t build_ns = 0;  ///< from the beginning to the end
  std::uint64_t user_ns = 0;   ///< processor time in the program
  std::uint64_t system_ns = 0;
  std::uint64_t delay_ns = 0;  ///< ready to run, without a CPU
};

/// "GPU-" and five groups of hexadecimal digits, as nvidia-smi -L prints it.
std::string uuid_text(const Gpu& gpu);

/// How long a rank waited, in seconds per step, by the rank that it waited for. A step counts for the rank that it waited
/// for longest. Empty if there was no waiting, or if it was not measured.
std::map<int, double> waits_by_rank(std::span<const Step> steps);

/// The rank with the longest of these waits, and its seconds; of equal ones the first rank. None without waits.
std::optional<std::pair<int, double>> longest_wait(const std::map<int, double>& waits);

/// The number of last steps that "now" means, for the exporter and lockstep-top.
inline constexpr std::size_t kRecentSteps = 32;

/// A consistent view of one rank's record: all counters belong to the same step.
struct Snapshot {
  Identity identity;
  std::uint32_t owner = 0;  ///< the user whose file it is
  std::int64_t process_id = 0;
  std::int64_t start_unix_ns = 0;
  std::uint64_t start_monotonic_ns = 0;
  Counters counters;
  std::optional<Resources> resources;  ///< none before the first sample
  std::vector<Step> steps;             ///< the last steps, oldest first
  double recent_own_seconds = 0;       ///< per step, mean of the last kRecentSteps of `steps`: Step::own_ns()
  std::map<int, double> recent_waits;  ///< of the same steps: waits_by_rank()
  std::optional<Phase> doing;          ///< the current phase of the rank
  std::uint64_t doing_since_ns = 0;    ///< CLOCK_MONOTONIC
  std::int64_t finished_unix_ns = 0;   ///< 0: it has not finished
  bool alive = false;                  ///< its process runs and has not finished

  /// CLOCK_REALTIME at the end of the last step; the start time before the first step.
  std::int64_t last_unix_ns() const {
    if (counters.steps == 0) return start_unix_ns;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(start_unix_ns) + counters.last_step_end_ns -
                                     start_monotonic_ns);
  }
};

/// Gets consistent snapshots from a record, while the rank writes and after it has died. Uses pread, because a file that is
/// truncated under a mapping would kill the reader; takes no lock and trusts nothing in the file: refuses a symbolic link,
/// anything but a regular file, and a wrong magic, version or size.
class Reader {
 public:
  /// Opens and checks a record. Throws Error naming the file and what is wrong with it.
  explicit Reader(const std::filesystem::path& path);
  /// The same for `name` in an open folder.
  Reader(int folder, const std::string& name);

  /// The rank that wrote it.
  const Identity& identity() const { return identity_; }

  /// The counters of the last complete step, and up to `last_steps` last steps. Throws Error if the
  /// file shrank, or if the writer overtook the reader many times in a row.
  Snapshot read(std::size_t last_steps = kRingSteps) const;

 private:
  void pread_exactly(void* into, std::size_t bytes, std::size_t offset) const;
  bool writer_lives() const;

  std::string name_;
  UniqueFd fd_;
  std::uint32_t owner_ = 0;
  Header header_;
  Identity identity_;
};

/// The rank of "rank-000003.record"; nullopt for any other name.
std::optional<int> rank_of(std::string_view file);

/// Reads the record `file`, whose name is that of `rank`, in an open folder. Without its last steps: with a thousand ranks
/// they would take most of the memory. Throws Error.
Snapshot read_without_steps(int folder, const std::string& file, int rank);

/// Writes a rank's numbers into its record. Adding to a phase is an addition in private memory; the end of a step is about
/// 500 stores into the mapping, without lock or system call.
///
/// Threads: the training thread; add_comm, add_collective, add_bytes_read, add_launch and the calls about the loader from any
/// thread; one thread, which may be another one, calls set_resources.
// The padding keeps other threads' counters out of the training thread's cache lines.
class Writer {  // NOLINT(clang-analyzer-optin.performance.Padding)
 public:
  /// Makes the file under a temporary name with all its blocks (so a full file system is an error here, not a SIGBUS later),
  /// readable for the folder's group (0640, whatever the umask), and locks it for as long as the process lives (so that
  /// readers can tell, also from other PID namespaces). Then renames it, which replaces one of the same name. Throws Error.
  Writer(const std::filesystem::path& path, const Identity& identity);
  /// Calls finish() and unmaps the file. The file stays.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Adds nanoseconds to a phase of the current step.
  void add_phase(Phase phase, std::uint64_t ns) noexcept { step_.phase_ns[index(phase)] += ns; }

  /// Records which phase begins, to show where a rank hangs. `now_ns` is CLOCK_MONOTONIC.
  void set_doing(Phase phase, std::uint64_t now_ns) noexcept;

  /// Adds communication: moving data, and waiting for a rank that came later. `late_rank` is -1 if
  /// unknown.
  void add_comm(std::uint64_t transfer_ns, std::uint64_t wait_ns, int late_rank) noexcept;

  /// Adds collectives of one kind, without waiting for later ranks. Operations at the same time count once.
  void add_collective(Collective collective, std::uint64_t bytes, std::uint64_t ns) noexcept {
    add(counted_.collectives[static_cast<std::size_t>(collective)].bytes, bytes);
    add(counted_.collectives[static_cast<std::size_t>(collective)].ns, ns);
  }

  void add_bytes_read(std::uint64_t bytes) noexcept { add(bytes_read_, bytes); }
  /// A thread of the loader has built a batch.
  void add_loader_work(const LoaderWork& work) noexcept {
    add(counted_.loader_build_ns, work.build_ns);
    add(counted_.loader_user_ns, work.user_ns);
    add(counted_.loader_system_ns, work.system_ns);
    add(counted_.loader_delay_ns, work.delay_ns);
  }
  /// The maximum memory of the batches of one more loader.
  void add_loader_buffers(std::uint64_t bytes) noexcept { add(counted_.loader_buffer_bytes, bytes); }
  /// Damaged samples that the loader has left out.
  void add_skipped_samples(std::uint64_t samples) noexcept { add(counted_.skipped_samples, samples); }
  /// Time of the computing phases in which a device waited for the host; the phases are those of a device.
  void add_launch(std::uint64_t ns) noexcept { add(counted_.launch_ns, ns); }
  void set_on_device() noexcept { std::atomic_ref(counted_.on_device).store(1, std::memory_order_relaxed); }

  /// Whether a step has ended.
  bool has_steps() noexcept {
    return std::atomic_ref(counted_.first_step_ns).load(std::memory_order_relaxed) != 0;
  }

  /// Publishes what the process uses. Fills in the fields that the calls above and the steps have set.
  void set_resources(Resources resources) noexcept;

  void add_skipped_step() noexcept { ++totals_.skipped_steps; }
  void set_loss_scale(double scale) noexcept { totals_.loss_scale = scale; }
  void set_cost_ratio(double ratio) noexcept { totals_.cost_ratio = ratio; }

  /// Ends the step and publishes it. Adds the part of `step_ns` that the phases do not explain to `other`; if
  /// the phases add up to more, the step is as long as they are. `end_ns` is CLOCK_MONOTONIC.
  void end_step(std::uint64_t step_ns, std::uint64_t end_ns, const StepCounts& counts) noexcept;

  /// Records that the rank has finished, unless it leaves by an exception. May be called again.
  void finish() noexcept;

  const std::filesystem::path& path() const { return path_; }

 private:
  static void add(std::uint64_t& total, std::uint64_t amount) noexcept {
    std::atomic_ref(total).fetch_add(amount, std::memory_order_relaxed);
  }
  void publish() noexcept;

  std::filesystem::path path_;
  UniqueFd fd_;  // holds the lock that says "alive"
  int exceptions_at_start_ = std::uncaught_exceptions();
  File* file_ = nullptr;
  Counters totals_;
  Step step_;
  // Other threads add to these atomically, so they are not in the training thread's cache lines.
  alignas(64) std::uint64_t comm_transfer_ns_ = 0;
  std::uint64_t comm_wait_ns_ = 0;
  std::atomic<std::uint64_t> longest_wait_{0};  // nanoseconds << 24 | rank
  std::uint64_t bytes_read_ = 0;
  Resources counted_;  // the fields that the calls above and the steps set; the others stay 0
};

}  // namespace lockstep::record
