// Writes a rank's numbers into its record, a small file on a memory file system. An exporter or a report
// reads it while the rank runs and after it has died. Adding to a phase is an addition in private memory; the
// end of a step is about 500 stores into the mapping, without lock or system call.
//
// The constructor creates the file under a temporary name with all its blocks (so a full file system is an
// error here, not a SIGBUS later), makes it readable for the folder's group (0640, whatever the umask), locks
// it for as long as the process lives (so that readers can tell, also from other PID namespaces), and then
// renames it.
//
// Threads: the training thread; add_comm, add_bytes_read and add_loader_work from any thread; one thread, which may be
// another one, calls set_resources.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>

#include "exporters/record/snapshot.h"

namespace lockstep::record {

// The padding keeps other threads' counters out of the training thread's cache lines.
class Writer {  // NOLINT(clang-analyzer-optin.performance.Padding)
 public:
  /// Makes the file; replaces one of the same name. Throws RecordError.
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
    auto& totals = collectives_[static_cast<std::size_t>(collective)];
    totals.bytes.fetch_add(bytes, std::memory_order_relaxed);
    totals.ns.fetch_add(ns, std::memory_order_relaxed);
  }

  void add_bytes_read(std::uint64_t bytes) noexcept {
    bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  }
  /// A thread of the loader has built a batch.
  void add_loader_work(const LoaderWork& work) noexcept {
    loader_build_ns_.fetch_add(work.build_ns, std::memory_order_relaxed);
    loader_user_ns_.fetch_add(work.user_ns, std::memory_order_relaxed);
    loader_system_ns_.fetch_add(work.system_ns, std::memory_order_relaxed);
    loader_delay_ns_.fetch_add(work.delay_ns, std::memory_order_relaxed);
  }
  /// The maximum memory of the batches of one more loader.
  void add_loader_buffers(std::uint64_t bytes) noexcept {
    loader_buffer_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  /// Damaged samples that the loader has left out.
  void add_skipped_samples(std::uint64_t samples) noexcept {
    skipped_samples_.fetch_add(samples, std::memory_order_relaxed);
  }
  /// Time of the computing phases in which a device waited for the host; the phases are those of a device.
  void add_launch(std::uint64_t ns) noexcept { launch_ns_.fetch_add(ns, std::memory_order_relaxed); }
  void set_on_device() noexcept { on_device_.store(1, std::memory_order_relaxed); }

  /// Whether a step has ended.
  bool has_steps() const noexcept { return first_step_ns_.load(std::memory_order_relaxed) != 0; }

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
  void publish() noexcept;

  std::filesystem::path path_;
  int fd_ = -1;  // holds the lock that says "alive"
  int exceptions_at_start_ = std::uncaught_exceptions();
  File* file_ = nullptr;
  Counters totals_;
  Step step_;
  // Communication and loader threads add to these, so they are not in the training thread's cache lines.
  alignas(64) std::atomic<std::uint64_t> comm_transfer_ns_{0};
  std::atomic<std::uint64_t> comm_wait_ns_{0};
  std::atomic<std::uint64_t> longest_wait_{0};  // nanoseconds << 24 | rank
  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<std::uint64_t> loader_build_ns_{0};
  std::atomic<std::uint64_t> loader_user_ns_{0};
  std::atomic<std::uint64_t> loader_system_ns_{0};
  std::atomic<std::uint64_t> loader_delay_ns_{0};
  std::atomic<std::uint64_t> loader_buffer_bytes_{0};
  std::atomic<std::uint64_t> skipped_samples_{0};
  std::atomic<std::uint64_t> first_step_ns_{0};
  std::atomic<std::uint64_t> launch_ns_{0};
  std::atomic<std::uint64_t> on_device_{0};
  struct AtomicTotals {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> ns{0};
  };
  std::array<AtomicTotals, kCollectives> collectives_;
};

}  // namespace lockstep::record
