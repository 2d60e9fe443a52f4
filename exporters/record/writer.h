// A rank's end of the record: writes its numbers into a small file on a memory file system, where an exporter
// or a report reads them while the rank runs and after it died. Adding to a phase is an addition in private
// memory; a step's end is some 500 stores into the mapping: no lock, no system call.
//
// The file is created under a temporary name with all its blocks (a full file system is an error here, not a
// SIGBUS later), made readable for the folder's group (0640, whatever the umask), locked for as long as the
// process lives (so readers know, also from other PID namespaces), and then renamed.
//
// Threads: the training thread; add_comm, add_bytes_read and add_bytes_staged from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "exporters/record/snapshot.h"

namespace lockstep::record {

// The padding keeps other threads' counters off the training thread's cache lines.
class Writer {  // NOLINT(clang-analyzer-optin.performance.Padding)
 public:
  /// Makes the file; one of the same name is replaced. Throws RecordError.
  Writer(const std::filesystem::path& path, const Identity& identity);
  /// finish(), then unmaps. The file stays.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Adds nanoseconds to a phase of the step that is going on.
  void add_phase(Phase phase, std::uint64_t ns) noexcept { step_.phase_ns[index(phase)] += ns; }

  /// Says which phase begins (for whoever wonders where a rank hangs); `now_ns` is CLOCK_MONOTONIC.
  void set_doing(Phase phase, std::uint64_t now_ns) noexcept;

  /// Communication: moving data, and waiting for a rank that came later. `waited_for_rank` is -1 where
  /// unknown.
  void add_comm(std::uint64_t transfer_ns, std::uint64_t wait_ns, int waited_for_rank) noexcept;

  void add_bytes_read(std::uint64_t bytes) noexcept {
    bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void add_bytes_staged(std::uint64_t bytes) noexcept {
    bytes_staged_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void add_skipped_step() noexcept { ++totals_.skipped_steps; }
  void set_loss_scale(double scale) noexcept { totals_.loss_scale = scale; }

  /// Closes the step and publishes it. What the phases do not explain of `step_ns` is added to `other`; where
  /// they add up to more, the step is as long as they are. `end_ns` is CLOCK_MONOTONIC.
  void end_step(std::uint64_t step_ns, std::uint64_t end_ns, const StepCounts& counts) noexcept;

  /// Forgets what was added since the last step's end.
  void drop_step() noexcept;

  /// Says that the rank is done. Safe to call again.
  void finish() noexcept;

  const std::filesystem::path& path() const { return path_; }

 private:
  void publish() noexcept;

  std::filesystem::path path_;
  int fd_ = -1;  // holds the lock that says "alive"
  File* file_ = nullptr;
  Counters totals_;
  Step step_;
  // Added to by communication and loader threads, so apart from the training thread's cache lines.
  alignas(64) std::atomic<std::uint64_t> comm_transfer_ns_{0};
  std::atomic<std::uint64_t> comm_wait_ns_{0};
  std::atomic<std::uint64_t> longest_wait_{0};  // nanoseconds << 20 | rank + 1
  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<std::uint64_t> bytes_staged_{0};
};

}  // namespace lockstep::record
