// Where a training step's time goes. Code that does a phase's work opens a scope; scopes may nest, and an
// inner one takes its time out of the outer one, so the phases always add up to the step. Each step goes into
// the rank's record (exporters/record), which the node's exporter and lockstep-report read.
//
//   timer.begin_step();  // optional: leaves out what happened since the last step
//
//   { auto scope = timer.phase(Phase::data_wait); batch = next(); }
//
//   { auto scope = timer.phase(Phase::forward); … }
//
//   timer.end_step({.tokens = n, .samples = m});
//
// The record's folder is $LOCKSTEP_RECORD (from the plugin), else the user's runtime folder; where none can
// be made, one line says so and the timer keeps its numbers to itself. With LOCKSTEP_REPORT_DIR set to a
// folder that all nodes share, a rank leaves a copy of its record there when it is done, for a report on the
// whole job.
//
// Threads: the training thread; add_comm, add_bytes_read and add_bytes_staged from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "exporters/record/phase.h"
#include "exporters/record/snapshot.h"

namespace lockstep::record {
class Writer;
}

namespace lockstep::profile {

using Identity = record::Identity;
using StepCounts = record::StepCounts;
using Phase = record::Phase;

struct Options {
  bool record = true;            ///< false: time only, write no file
  std::filesystem::path folder;  ///< of the records; empty: as said above
};

/// The times of a step, or of many. Nanoseconds.
struct Times {
  std::uint64_t steps = 0;
  std::uint64_t step_ns = 0;
  std::array<std::uint64_t, record::kPhases> phase_ns{};  ///< add up to step_ns
  StepCounts counts;
};

class StepTimer {
 public:
  explicit StepTimer(const Identity& identity, Options options = {});
  /// finish().
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  /// Time from here to the scope's end belongs to its phase, but for scopes inside.
  class [[nodiscard]] Scope {
   public:
    Scope(Scope&& other) noexcept : timer_(other.timer_), outer_(other.outer_) { other.timer_ = nullptr; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    Scope& operator=(Scope&&) = delete;
    ~Scope() {
      if (timer_ != nullptr) timer_->enter(outer_);
    }

   private:
    friend class StepTimer;
    Scope(StepTimer& timer, Phase outer) : timer_(&timer), outer_(outer) {}
    StepTimer* timer_;
    Phase outer_;
  };

  /// Opens a scope. The first scope, or begin_step(), begins the first step.
  Scope phase(Phase phase) {
    const Phase outer = current_;
    enter(phase);
    return {*this, outer};
  }

  /// Communication that went on beside the phases: moving data, and waiting for a rank that came later
  /// (`waited_for_rank`, -1 where unknown). Any thread.
  void add_comm(std::uint64_t transfer_ns, std::uint64_t wait_ns, int waited_for_rank);

  /// Bytes that the loader read from packed files, or that were staged by this process. Any thread.
  void add_bytes_read(std::uint64_t bytes);
  void add_bytes_staged(std::uint64_t bytes);

  void set_loss_scale(double scale);
  /// The loss scaler found infinite gradients and the optimizer did not step.
  void add_skipped_step();

  /// Begins the step now: what went on since the last step's end (an evaluation, say) belongs to no step.
  void begin_step();

  /// Ends the step, and the next one begins. Time in no scope goes to `other`.
  void end_step(const StepCounts& counts);

  const Times& last_step() const { return last_; }
  const Times& totals() const { return totals_; }

  /// The rank's record; empty where none is written.
  const std::filesystem::path& file() const { return file_; }

  /// Marks the record as done and leaves its copy in $LOCKSTEP_REPORT_DIR. Never throws; says what went wrong
  /// in one line. Safe to call again.
  void finish() noexcept;

 private:
  void enter(Phase phase);

  Identity identity_;
  std::filesystem::path file_;
  std::unique_ptr<record::Writer> writer_;
  Phase current_ = Phase::other;
  bool running_ = false;  // a step has begun
  std::uint64_t step_begin_ns_ = 0;
  std::uint64_t mark_ns_ = 0;  // up to here time has been given to phases
  std::array<std::uint64_t, record::kPhases> phase_ns_{};
  Times last_;
  Times totals_;
};

}  // namespace lockstep::profile
