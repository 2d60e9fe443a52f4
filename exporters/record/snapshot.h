// The values that a rank writes into its record, and the reader that gets them from it: consistent snapshots, while the
// rank writes and after it has died. The reader uses pread, because a file that is truncated under a mapping would kill it; it
// takes no lock and trusts nothing in the file: it refuses a symbolic link, anything but a regular file, and a wrong magic,
// version or size.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exporters/record/layout.h"

namespace lockstep::record {

/// A record cannot be made or read. The message names the file and the reason.
class RecordError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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

class Reader {
 public:
  /// Opens and checks a record. Throws RecordError naming the file and what is wrong with it.
  explicit Reader(const std::filesystem::path& path);
  /// The same for `name` in an open folder.
  Reader(int folder, const std::string& name);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// The rank that wrote it.
  const Identity& identity() const { return identity_; }

  /// The counters of the last complete step, and up to `last_steps` last steps. Throws RecordError if the
  /// file shrank, or if the writer overtook the reader many times in a row.
  Snapshot read(std::size_t last_steps = kRingSteps) const;

 private:
  void check();
  void pread_exactly(void* into, std::size_t bytes, std::size_t offset) const;
  bool writer_lives() const;

  std::string name_;
  int fd_ = -1;
  std::uint32_t owner_ = 0;
  Header header_;
  Identity identity_;
};

/// The rank of "rank-000003.record"; nullopt for any other name.
std::optional<int> rank_of(std::string_view file);

/// Reads the record `file`, whose name is that of `rank`, in an open folder. Without its last steps: with a thousand ranks
/// they would take most of the memory. Throws RecordError.
Snapshot read_without_steps(int folder, const std::string& file, int rank);

}  // namespace lockstep::record
