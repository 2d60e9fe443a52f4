#include "runtime/profile/step_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "common/clock.h"
#include "common/environment.h"
#include "common/process.h"
#include "common/units.h"
#include "exporters/record/goodput.h"
#include "exporters/record/record.h"
#include "runtime/profile/device_phases.h"
#include "runtime/profile/event_file.h"
#include "runtime/profile/profiler.h"
#include "runtime/profile/record_folder.h"
#include "runtime/profile/resource_sampler.h"
#include "runtime/profile/spans.h"

namespace lockstep::profile {
namespace {

double milliseconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

// Once: a backward within the loader's step was synchronised.
void print_early_exchange() {
  static bool printed = false;
  if (std::exchange(printed, true)) return;
  fmt::print(
      stderr,
      "lockstep: the loop exchanges gradients before the last micro-batch of the loader's step: hold ddp.no_sync_unless(batch.last_of_step), and call optimizer.step() only if batch.last_of_step (docs/users/ddp.md)\n");
}

}  // namespace

StepTimer::StepTimer(const Identity& identity, Options options) : identity_(identity) {
  const bool wanted = environment::is_on("LOCKSTEP_METRICS", true);
  open_event_file();
  if (!options.record || !wanted) return;
  try {
    if (identity_.job_id == 0) identity_.job_id = local_job_id();
    if (options.folder.empty()) options.folder = make_record_folder(identity_);
    file_ = options.folder / record_name(identity_.rank);
    writer_ = std::make_unique<record::Writer>(file_, identity_);
    sampler_ = std::make_unique<ResourceSampler>(*writer_, identity_);
  } catch (const std::exception& error) {
    file_.clear();
    fmt::print(
        stderr,
        "lockstep: {} cannot record its step times: {}: check that the folder is this user's and has space, or set LOCKSTEP_METRICS=off\n",
        rank_name(identity_.rank, identity_.node), error.what());
    return;
  }
  const auto report = environment::get("LOCKSTEP_REPORT_DIR");
  if (!report || identity_.local_rank != 0) return;
  try {
    check_report_folder(*report);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {} will not be able to copy its record to LOCKSTEP_REPORT_DIR: {}\n",
               rank_name(identity_.rank, identity_.node), error.what());
  }
}

StepTimer::~StepTimer() {
  finish();
}

void StepTimer::open_event_file() {
  const auto folder = environment::get("LOCKSTEP_TENSORBOARD");
  if (!folder || identity_.rank != 0) return;
  try {
    events_ = std::make_unique<EventFile>(*folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {} writes no event file to LOCKSTEP_TENSORBOARD: {}\n",
               rank_name(identity_.rank, identity_.node), error.what());
  }
}

void StepTimer::enter(Phase phase) {
  const std::uint64_t now = monotonic_ns();
  const Phase before = std::exchange(current_, phase);
  if (writer_) writer_->set_doing(phase, now);
  if (evaluations_ > 0) return;
  if (progress_ == Progress::none) {
    progress_ = Progress::begun;
    step_begin_ns_ = now;
    if (device_) device_->begin_step();
  } else {
    phase_ns_[record::index(before)] += now - mark_ns_;
    if (device_) device_->end_phase(before);
    if (tracing() && before != Phase::other) {
      add_span({.kind = SpanKind::phase,
                .name = std::string(record::name(before)),
                .begin_ns = mark_ns_,
                .end_ns = now});
    }
  }
  mark_ns_ = now;
}

void StepTimer::add_model(const void* model) {
  models_.insert(model);
  if (ended_by_ == EndedBy::loader) ended_by_ = EndedBy::models;
}

void StepTimer::remove_model(const void* model) {
  models_.erase(model);
  compare_synchronised();
}

void StepTimer::note_synchronised(const void* model) {
  if (ended_by_ == EndedBy::program) return;
  synchronised_.insert(model);
  compare_synchronised();
}

void StepTimer::compare_synchronised() {
  if (synchronised_.empty()) return;
  const bool all = std::includes(synchronised_.begin(), synchronised_.end(), models_.begin(), models_.end());
  progress_ = all ? Progress::trained : Progress::synchronised;
}

void StepTimer::begin_first_step() {
  if (progress_ == Progress::none) enter(current_);
}

void StepTimer::begin_training_forward(const void* model) {
  if (progress_ == Progress::trained || synchronised_.contains(model)) end_trained_step();
  begin_first_step();
  progress_ = std::max(progress_, Progress::training);
  take_batch();
}

StepTimer::Scope StepTimer::begin_forward_without_gradients() {
  end_if_trained();
  return phase(Phase::other);
}

// The time since the last step, of an evaluation, belongs to no step.
void StepTimer::end_evaluation_forward() {
  if (ended_by_ != EndedBy::program && progress_ <= Progress::begun) begin_step();
}

void StepTimer::begin_evaluation() {
  if (evaluations_ == 0) {
    end_if_trained();
    if (progress_ != Progress::none) enter(current_);  // the time before it belongs to the step
  }
  ++evaluations_;
}

// In the middle of a step, the step goes on as if no time had passed.
void StepTimer::end_evaluation() {
  if (--evaluations_ > 0 || progress_ == Progress::none) return;
  const std::uint64_t now = monotonic_ns();
  step_begin_ns_ += now - mark_ns_;
  mark_ns_ = now;
  if (device_) device_->skip();
}

void StepTimer::take_batch() {
  if (!batch_) return;
  if (!batches_) batches_.emplace();
  *batches_ += *std::exchange(batch_, std::nullopt);
}

void StepTimer::request_batch(bool new_step) {
  if (evaluations_ > 0) return;
  begin_first_step();
  if (new_step) {
    end_if_trained();
  } else if (batches_) {
    if (!synchronised_.empty() && identity_.rank == 0) print_early_exchange();
    synchronised_.clear();
    progress_ = std::min(progress_, Progress::training);
  }
}

void StepTimer::add_batch(const StepCounts& counts, bool last_of_step) {
  if (evaluations_ > 0) return;
  batch_ = counts;
  if (ended_by_ != EndedBy::loader) return;
  take_batch();
  progress_ = last_of_step ? Progress::trained : std::max(progress_, Progress::training);
}

void StepTimer::end_trained_step() {
  end(batches_.value_or(StepCounts{.tokens = backward_tokens_, .samples = 0, .padding = 0}));
}

void StepTimer::begin_step() {
  if (progress_ >= Progress::synchronised) end_trained_step();
  phase_ns_.fill(0);
  step_begin_ns_ = mark_ns_ = monotonic_ns();
  if (device_) device_->begin_step();
  progress_ = std::max(progress_, Progress::begun);
}

void StepTimer::end_step(const StepCounts& counts) {
  ended_by_ = EndedBy::program;
  synchronised_.clear();
  if (progress_ == Progress::none) return begin_step();
  end(counts);
}

void StepTimer::end(const StepCounts& counts) {
  enter(current_);  // the time of the open scope so far belongs to this step
  last_ = {.steps = 1, .step_ns = mark_ns_ - step_begin_ns_, .phase_ns = phase_ns_, .counts = counts};
  totals_.steps += 1;
  totals_.step_ns += last_.step_ns;
  for (std::size_t phase = 0; phase < record::kPhases; ++phase) totals_.phase_ns[phase] += phase_ns_[phase];
  totals_.counts += counts;
  if (device_ && !device_->failed()) {
    device_->end_step(mark_ns_, counts, phase_ns_);
    write_device_steps(false);
  } else {
    write_step(last_, mark_ns_);
  }
  if (events_) write_scalars();
  if (tracing()) {
    add_span({.kind = SpanKind::step,
              .name = fmt::format("step {}", totals_.steps),
              .begin_ns = step_begin_ns_,
              .end_ns = mark_ns_});
  }
  // Writing a profile belongs to no step.
  if (profiler_ != nullptr && profiler_->end_step()) {
    mark_ns_ = monotonic_ns();
    if (device_) device_->begin_step();
  }
  step_begin_ns_ = mark_ns_;
  phase_ns_.fill(0);
  batches_.reset();
  progress_ = Progress::begun;
  synchronised_.clear();
  backward_tokens_ = 0;
  if (profiler_ != nullptr && profiler_->ends_job()) profiler_->end_job();
}

void StepTimer::write_step(const Times& step, std::uint64_t ended_ns) {
  if (!writer_) return;
  for (std::size_t phase = 0; phase < record::kPhases; ++phase)
    writer_->add_phase(static_cast<Phase>(phase), step.phase_ns[phase]);
  writer_->end_step(step.step_ns, ended_ns, step.counts);
}

void StepTimer::write_device_steps(bool wait) {
  while (const auto step = device_->take(wait)) {
    write_step({.steps = 1, .step_ns = step->step_ns, .phase_ns = step->phase_ns, .counts = step->counts},
               step->ended_ns);
    writer_->add_launch(step->launch_ns);
  }
}

void StepTimer::use_device_clock(std::unique_ptr<DeviceClock> clock,
                                 std::function<AllocatorState()> allocator) {
  if (device_ || !writer_) return;
  sampler_->set_gpus(clock->device_identity(), granted_gpus().count, std::move(allocator));
  device_ = std::make_unique<DevicePhases>(std::move(clock));
  writer_->set_on_device();
}

void StepTimer::use_cpu() {
  if (device_) return;
  const GrantedGpus granted = granted_gpus();
  if (granted.count == 0) return;
  if (sampler_) sampler_->set_gpus("", granted.count);
  if (identity_.rank != 0 || std::exchange(warned_of_gpus_, true)) return;
  fmt::print(
      stderr,
      "lockstep: {} has a model on the CPU although the job has {} here ({}): move it to a GPU, with a LibTorch for CUDA, or ask Slurm for none\n",
      rank_name(identity_.rank, identity_.node),
      granted.count == 1 ? "a GPU" : fmt::format("{} GPUs", granted.count), granted.variable);
}

void StepTimer::add_scalar(std::string name, double value) {
  if (events_) scalars_.emplace_back(std::move(name), value);
}

void StepTimer::write_scalars() {
  scalars_.emplace_back("rank_0/step_ms", milliseconds(last_.step_ns));
  for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
    if (totals_.phase_ns[phase] == 0) continue;  // the job does not have this phase
    scalars_.emplace_back(fmt::format("rank_0/{}_ms", record::kPhaseNames[phase]),
                          milliseconds(last_.phase_ns[phase]));
  }
  if (last_.counts.tokens > 0) {
    scalars_.emplace_back("rank_0/tokens_per_second",
                          static_cast<double>(last_.counts.tokens) / milliseconds(last_.step_ns) * 1e3);
  }
  try {
    events_->add(totals_.steps, scalars_);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {} stops its event file for TensorBoard: {}\n",
               rank_name(identity_.rank, identity_.node), error.what());
    events_.reset();
  }
  scalars_.clear();
}

// One line for the job: the ranks wait for each other, so rank 0's time goes where theirs goes.
void StepTimer::print_goodput() const {
  if (identity_.rank != 0 || std::uncaught_exceptions() > 0) return;
  const record::Snapshot own = record::Reader(file_).read(0);
  if (own.counters.steps == 0) return;
  const record::Goodput goodput =
      record::goodput_of(own, static_cast<double>(monotonic_ns() - own.start_monotonic_ns) * 1e-9);
  std::string text = fmt::format("goodput of rank 0 in {} steps: {}", own.counters.steps,
                                 record::to_text(goodput, format_seconds(goodput.seconds)));
  if (own.counters.tokens > 0) {
    text += fmt::format("; {} tokens", format_count(static_cast<double>(own.counters.tokens)));
  }
  if (own.resources && own.resources->gpu.energy_mj > 0) {
    text += fmt::format("; {}J for its GPU",
                        format_count(static_cast<double>(own.resources->gpu.energy_mj) * 1e-3));
  }
  fmt::print(stderr, "lockstep: {}\n", text);
}

void StepTimer::finish() noexcept {
  if (progress_ >= Progress::synchronised) end_trained_step();
  if (!writer_) return;
  try {
    // After an exception the device may wait for a rank that has ended.
    if (device_) write_device_steps(std::uncaught_exceptions() == 0);
    device_.reset();  // the times of later steps go nowhere
    sampler_.reset();
    writer_->finish();
    writer_.reset();
    if (const auto folder = environment::get("LOCKSTEP_REPORT_DIR")) {
      copy_record(file_, identity_, *folder);
    }
    print_goodput();
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {} cannot copy its record to LOCKSTEP_REPORT_DIR: {}\n",
               rank_name(identity_.rank, identity_.node), error.what());
  }
}

}  // namespace lockstep::profile
