// Measures where the time of a training step goes. Code that works in a phase opens a scope. Scopes may nest:
// the time of an inner scope does not count for the outer one, so the phases always add up to the step. Each
// step is written into the rank's record (exporters/record), which the node's exporter and lockstep-report
// read.
//
//   timer.begin_step();  // optional: leaves out the time since the last step
//
//   { auto scope = timer.phase(Phase::data_wait); batch = next(); }
//
//   { auto scope = timer.phase(Phase::forward); … }
//
//   timer.end_step({.tokens = n, .samples = m});
//
// A step ends without end_step() too, since DistributedDataParallel, the loader and Validation tell the timer what they do.
// When a step is trained, it ends with the first of: the next training forward, the next wait for data, a forward without
// gradients through DistributedDataParallel, a Validation, the timer's end. It is trained when all models have synchronised
// their gradients; a model that has ends it with its own next training forward also before that. Without models, it is
// trained with the last batch of the loader's step. The time of a Validation belongs to no step. A forward without
// gradients is `other`; before a step's first training forward, in evaluation mode, it and the time before it belong to
// no step. The first end_step() of the program switches all this off: then only end_step() ends steps.
//
// With a DeviceClock, the record's times are those of the device, and a step is recorded when the device has finished
// it. last_step() and totals() are always times of the host.
//
// The record's folder is $LOCKSTEP_RECORD (set by the plugin), else the user's runtime folder. If it cannot
// be made, the timer prints one line and writes no record. If LOCKSTEP_REPORT_DIR names a folder that all
// nodes share, each rank copies its record there at its end, for a report on the whole job. If LOCKSTEP_TENSORBOARD
// names a folder, rank 0 writes the times of its steps, and what add_scalar() adds, to an event file there.
//
// Threads: the training thread; add_comm, add_bytes_read and add_loader_work from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exporters/record/record.h"

namespace lockstep::profile {

struct AllocatorState;
class DeviceClock;
class DevicePhases;
class EventFile;
class Profiler;
class ResourceSampler;

using Identity = record::Identity;
using LoaderWork = record::LoaderWork;
using StepCounts = record::StepCounts;
using Phase = record::Phase;

struct Options {
  bool record = true;            ///< false: only measure, write no file
  std::filesystem::path folder;  ///< of the records; empty: the default above
};

/// The times of one or more steps, in nanoseconds.
struct Times {
  std::uint64_t steps = 0;
  std::uint64_t step_ns = 0;
  std::array<std::uint64_t, record::kPhases> phase_ns{};  ///< add up to step_ns
  StepCounts counts;
};

class StepTimer {
 public:
  explicit StepTimer(const Identity& identity, Options options = {});
  /// Calls finish().
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  /// Time until the scope's end belongs to its phase, except the time of inner scopes.
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

  /// Opens a scope. The first scope, the loader's first batch, or begin_step() begins the first step.
  Scope phase(Phase phase) {
    if (phase == Phase::data_wait) end_if_trained();
    const Phase outer = current_;
    enter(phase);
    return {*this, outer};
  }

  /// Adds communication that ran in parallel with the phases: the time of the transfer, and the time of
  /// waiting for the last rank (`late_rank`, -1 if unknown). Any thread.
  void add_comm(std::uint64_t transfer_ns, std::uint64_t wait_ns, int late_rank) {
    if (writer_) writer_->add_comm(transfer_ns, wait_ns, late_rank);
  }

  /// Collectives of one kind, without waiting for later ranks. Any thread.
  void add_collective(record::Collective collective, std::uint64_t bytes, std::uint64_t ns) {
    if (writer_ && ns > 0) writer_->add_collective(collective, bytes, ns);
  }

  /// Bytes that the loader read from packed files. Any thread.
  void add_bytes_read(std::uint64_t bytes) {
    if (writer_) writer_->add_bytes_read(bytes);
  }

  /// A thread of the loader has built a batch. Any thread.
  void add_loader_work(const LoaderWork& work) {
    if (writer_) writer_->add_loader_work(work);
  }
  /// The maximum memory of a loader's batches.
  void add_loader_buffers(std::uint64_t bytes) {
    if (writer_) writer_->add_loader_buffers(bytes);
  }
  /// Damaged samples that a loader has left out.
  void add_skipped_samples(std::uint64_t samples) {
    if (writer_) writer_->add_skipped_samples(samples);
  }

  void set_loss_scale(double scale) {
    if (writer_) writer_->set_loss_scale(scale);
  }
  /// The loss scaler found infinite gradients, so the optimizer skipped the step.
  void add_skipped_step() {
    if (writer_) writer_->add_skipped_step();
  }

  /// Begins the step now: the time since the end of the last step (an evaluation, say) belongs to no step.
  void begin_step();

  /// Ends the step and begins the next one. Time outside all scopes counts as `other`. From now on only this call ends
  /// steps. If neither a scope nor begin_step() has begun the first step, the first call begins it and records nothing,
  /// because the beginning of the work before it is unknown.
  void end_step(const StepCounts& counts);

  /// From now on the record has the device's times, measured by this clock, and what `allocator` says, which is called from
  /// any thread (null: nothing). Later calls do nothing.
  void use_device_clock(std::unique_ptr<DeviceClock> clock,
                        std::function<AllocatorState()> allocator = nullptr);

  /// The model is on the CPU. If the job was granted GPUs, rank 0 prints a warning.
  void use_cpu();

  /// DistributedDataParallel calls these, so that steps end without end_step(): at its construction and destruction,
  /// before a forward with gradients, around one without, for each backward, and after a synchronised backward.
  /// `model` tells several from each other.
  void add_model(const void* model);
  void remove_model(const void* model);
  void begin_training_forward(const void* model);
  Scope begin_forward_without_gradients();
  void end_evaluation_forward();
  void add_backward_tokens(std::int64_t tokens) { backward_tokens_ += static_cast<std::uint64_t>(tokens); }
  void note_synchronised(const void* model);

  /// Validation calls these: the time between them belongs to no step, and a step that is trained ends before it. They may
  /// be nested.
  void begin_evaluation();
  void end_evaluation();

  /// The loader calls these: when the program asks for a batch (`new_step`: the previous batch was the last one of its
  /// step), and with the contents of the batch. A batch counts when a forward with gradients follows it; without
  /// DistributedDataParallel it counts at once, and the step is trained with its last one.
  void request_batch(bool new_step);
  void add_batch(const StepCounts& counts, bool last_of_step);
  /// a / b of the cost by which the planner has made the ranks' work equal, for the report.
  void set_cost_ratio(double ratio) {
    if (writer_) writer_->set_cost_ratio(ratio);
  }

  /// A number of the current step for TensorBoard, such as its loss. Ignored without LOCKSTEP_TENSORBOARD, and on other
  /// ranks than 0.
  void add_scalar(std::string name, double value);

  /// `profiler` is called at each step's end; null: none. It must outlive this object.
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }

  const Times& last_step() const { return last_; }
  const Times& totals() const { return totals_; }

  /// The rank's record; empty if none is written.
  const std::filesystem::path& file() const { return file_; }

  /// Marks the record as finished and copies it to $LOCKSTEP_REPORT_DIR. Never throws; prints errors in one
  /// line. May be called again.
  void finish() noexcept;

 private:
  // The loader ends steps until there is a model.
  enum class EndedBy { loader, models, program };
  // How far the step is.
  enum class Progress {
    none,          // the first step has not begun
    begun,         // it has no forward with gradients yet
    training,      // it has some
    synchronised,  // some of the models have synchronised their gradients
    trained,       // all have: the next event ends it
  };

  void enter(Phase phase);
  void begin_first_step();
  void compare_synchronised();
  void end_if_trained() {
    if (progress_ == Progress::trained) end_trained_step();
  }
  void end_trained_step();
  void take_batch();
  void end(const StepCounts& counts);
  void write_step(const Times& step, std::uint64_t ended_ns);
  void write_device_steps(bool wait);
  void open_event_file();
  void write_scalars();
  void print_goodput() const;

  Identity identity_;
  std::filesystem::path file_;
  std::unique_ptr<record::Writer> writer_;
  std::unique_ptr<ResourceSampler> sampler_;  // null without a record
  bool warned_of_gpus_ = false;
  std::unique_ptr<DevicePhases> device_;  // if the record has the times of a device
  std::unique_ptr<EventFile> events_;     // of TensorBoard; null: none
  std::vector<std::pair<std::string, double>> scalars_;
  Profiler* profiler_ = nullptr;
  Phase current_ = Phase::other;
  std::uint64_t step_begin_ns_ = 0;
  std::uint64_t mark_ns_ = 0;  // time before this is already counted
  std::array<std::uint64_t, record::kPhases> phase_ns_{};
  EndedBy ended_by_ = EndedBy::loader;
  Progress progress_ = Progress::none;
  int evaluations_ = 0;                 // that have begun and not ended
  std::set<const void*> models_;        // under DistributedDataParallel
  std::set<const void*> synchronised_;  // of models_, in this step
  std::optional<StepCounts> batch_;     // the loader's last batch, which does not count yet
  std::optional<StepCounts> batches_;   // of the loader, in this step
  std::uint64_t backward_tokens_ = 0;
  Times last_;
  Times totals_;
};

// Times how long the training loop waits for a data loader other than ours, so that the report can say that a job
// waits for its data:
//
//   for (auto& batch : lockstep::profile::timed_batches(world.timer(), *torch_loader)) { … }

/// Iterates over `batches`, which has begin() and end(), and counts the time of each advance as Phase::data_wait.
/// `timer` and `batches` must outlive this object.
template <typename Batches>
class TimedBatches {
 public:
  TimedBatches(StepTimer& timer, Batches& batches) : timer_(&timer), batches_(&batches) {}

  template <typename Inner>
  class Iterator {
   public:
    Iterator(StepTimer& timer, Inner inner) : timer_(&timer), inner_(std::move(inner)) {}
    decltype(auto) operator*() { return *inner_; }
    Iterator& operator++() {
      const auto scope = timer_->phase(Phase::data_wait);
      ++inner_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return inner_ != other.inner_; }

   private:
    StepTimer* timer_;
    Inner inner_;
  };

  auto begin() {
    const auto scope = timer_->phase(Phase::data_wait);
    return Iterator(*timer_, batches_->begin());
  }
  auto end() { return Iterator(*timer_, batches_->end()); }

 private:
  StepTimer* timer_;
  Batches* batches_;
};

template <typename Batches>
TimedBatches<Batches> timed_batches(StepTimer& timer, Batches& batches) {
  return {timer, batches};
}

}  // namespace lockstep::profile
