#include "runtime/data/loader.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/job_limits.h"
#include "common/ordered_prefetch.h"
#include "common/units.h"
#include "runtime/comm/alike.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/data/batch/device_copy.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_advice.h"
#include "runtime/data/loader_setup.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/suggest.h"
#include "runtime/profile/spans.h"
#include "runtime/profile/step_timer.h"
#include "runtime/torch_archive.h"

namespace lockstep::data {
namespace {

// Collective. Each rank plans separately, and no plan is sent: if a rank had other data, options or another state, the ranks
// would train on some samples twice and on others never.
void check_loaders(comm::Communicator& communicator, const std::vector<comm::Property>& inputs) {
  comm::check_alike(communicator, "the ranks' loaders", inputs, "the loaders' inputs",
                    "compare the data's paths on the nodes, and the options");
}

// All images cost the same, so every micro-batch should be full.
PlanOptions with_step_tokens(PlanOptions plan, const LoaderOptions& options) {
  if (options.images && plan.step_tokens == 0) {
    plan.step_stretch = step_stretch(plan);
    plan.step_tokens =
        plan.cap * static_cast<std::uint64_t>(plan.ranks) * static_cast<std::uint64_t>(plan.accumulate);
  }
  return plan;
}

profile::StepCounts counts_of(const Batch& batch) {
  return {.tokens = static_cast<std::uint64_t>(batch.token_count),
          .samples = batch.sample_ids.defined() ? static_cast<std::uint64_t>(batch.sample_ids.numel()) : 0,
          .padding = static_cast<std::uint64_t>(batch.padding)};
}

// The report compares the ranks' times with what this cost promises: that the work of all ranks is equal.
bool balances_cost(const PlanOptions& plan, const LoaderOptions& options) {
  return plan.speeds.empty() && plan.order != Order::sequential && !options.images;
}

}  // namespace

struct Loader::State {
  State(const pack::Reader& reader, const PlanOptions& plan, int own_rank, profile::StepTimer* step_timer,
        comm::Communicator* rank_communicator, const LoaderOptions& loader_options)
      : rank(own_rank),
        timer(step_timer),
        options(loader_options),
        plan_options(plan),
        step_sizes_due(rank == 0 && plan.step_tokens > 0 && !loader_options.images),
        empty_epoch_due(rank == 0),
        same_epoch_due(rank == 0 && !loader_options.mixture && plan.order == Order::shuffled),
        prefetch(prefetch_options(options, batch_bytes(plan, options))),
        lengths(planned_lengths(reader, plan, options)),
        builder(make_builder(reader, lengths, plan, rank, prefetch.threads, options)),
        source(lengths.tokens, lengths.fingerprint),
        cursor([this](const PlanOptions& epoch_plan) { return make_planner(source, epoch_plan, options); },
               {.plan = plan, .rank = rank, .follow = options.next_epoch_ahead && !options.mixture}),
        communicator(rank_communicator),
        copy(options.device) {
    if (options.mixture) {
      plan_options.epoch = 0;
      make_planner(source, plan_options, options);  // throws if the mixture is wrong
    }
    start.epoch = current.epoch = plan_options.epoch;
    if (const std::size_t empty = rank == 0 ? count_empty(lengths.tokens) : 0; empty > 0)
      fmt::print(stderr, "lockstep: {} of {} samples are empty and are left out\n", empty,
                 lengths.tokens.size());
    if (timer == nullptr) return;
    timer->add_loader_buffers(memory().total());
    if (balances_cost(plan, options)) timer->set_cost_ratio(plan.cost.ratio());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Not for the steps of a mixture, which hold several data sets; images, which all cost the same; and validation, which
  // has no optimizer steps.
  void print_advice() const {
    if (options.mixture || options.images || plan_options.order == Order::sequential) return;
    try {
      if (const auto advice = advice_on_step_size(lengths.tokens, plan_options)) {
        fmt::print(stderr, "lockstep: {}\n", *advice);
      }
    } catch (const Error&) {  // the loop plans again, and throws the same error
    }
  }

  LoaderMemory memory() const {
    const std::size_t being_copied = copy.needed() ? 2 : 0;
    return {.batch = builder->buffers().capacity(),
            .batches = prefetch.ahead + 1 + being_copied,
            .page_locked = builder->buffers().page_locked()};
  }

  // Collective: compares the loaders after every rank has made its own.
  void compare_loaders() { check_loaders(*communicator, plan_inputs(lengths, plan_options, options)); }

  // Collective. Each rank plans separately. If two ranks made different plans (because of other processors or
  // libraries), some samples would be used twice and others never.
  void compare_plans(const EpochBlock& next) const {
    if (communicator == nullptr) return;
    check_loaders(*communicator,
                  {{fmt::format("the plan from step {} on", next.block.start.steps),
                    fmt::format("{} steps of {} samples, {}", next.block.plan.steps(),
                                next.block.plan.sample_ids().size(), next.block.plan.steps_fingerprint())}});
  }

  // Once, if the program says how many tokens a step has. Not for the rest of an epoch that is only its last step: that one
  // is not full.
  void print_step_sizes(const EpochBlock& next) {
    if (next.block.start.steps > 0 && next.block.plan.steps() == 1) return;
    if (!std::exchange(step_sizes_due, false)) return;
    fmt::print(stderr, "lockstep: {}\n", describe_step_sizes(next.block.plan, lengths.tokens));
  }

  // Once: a training of such epochs ends without a word.
  void print_empty_epoch(std::uint64_t epoch) {
    if (!std::exchange(empty_epoch_due, false)) return;
    const auto number = [](std::size_t count, const char* what) {
      return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
    };
    fmt::print(
        stderr,
        "lockstep: epoch {} of the loader has no steps: {} for {} with tail = {} and too_long = {}; use tail = fill, or more data\n",
        epoch, number(lengths.tokens.size(), "sample"),
        number(static_cast<std::size_t>(plan_options.ranks), "rank"), name_of(plan_options.tail),
        name_of(plan_options.too_long));
  }

  // Once, for a loop that has run through this epoch already. An evaluation may do so.
  void print_same_epoch() {
    if (next_epoch != start.epoch + 1 || start.planner || !torch::GradMode::is_enabled()) return;
    if (!std::exchange(same_epoch_due, false)) return;
    fmt::print(
        stderr,
        "lockstep: epoch {} of the loader begins again, with the same batches in the same order: call loader.set_epoch(epoch) before each epoch (docs/users/batches.md)\n",
        start.epoch);
  }

  HostBatch build(const MicroBatch& micro_batch, int worker) {
    const std::uint64_t begin = monotonic_ns();
    const profile::LoaderWork work_before = work_of_thread();
    HostBatch built = builder->build(micro_batch, worker);
    if (!micro_batch.block) return built;
    const std::uint64_t end = monotonic_ns();
    meter.add_build(end - begin);
    if (timer != nullptr) {
      const profile::LoaderWork work = work_of_thread();
      timer->add_loader_work({.build_ns = end - begin,
                              .user_ns = work.user_ns - work_before.user_ns,
                              .system_ns = work.system_ns - work_before.system_ns,
                              .delay_ns = work.delay_ns - work_before.delay_ns});
      timer->add_bytes_read(built.bytes_read);
    }
    if (profile::tracing()) {
      profile::add_span({.kind = profile::SpanKind::batch,
                         .name = fmt::format("batch {} of step {}", micro_batch.index, micro_batch.step),
                         .begin_ns = begin,
                         .end_ns = end});
    }
    return built;
  }

  profile::StepCounts counts_of_batch() const {
    profile::StepCounts counts = counts_of(*batch);
    if (!balances_cost(plan_options, options)) return counts;
    const MicroBatchShape shape = shape_of(current.samples(rank), lengths.tokens, plan_options);
    counts.squares = static_cast<std::uint64_t>(shape.squares);
    return counts;
  }

  // Sets `staged`. Waits for the next batch or the end of an epoch if necessary.
  void stage_now() {
    if (staged) return;
    bool ready = uncopied.has_value();
    if (!ready) uncopied = queue->next_if_ready(ready);
    if (!ready) {
      const std::uint64_t begin = monotonic_ns();
      std::optional<profile::StepTimer::Scope> scope;
      if (timer != nullptr) scope.emplace(timer->phase(profile::Phase::data_wait));
      uncopied = queue->next();
      waited_ns = monotonic_ns() - begin;
    }
    if (!uncopied) fail("no epochs left: the loop requested a batch after the loader's last epoch");
    stage();
  }

  // A batch that has left the queue is kept until the program has it: if a copy failed and its batch were dropped, this rank
  // would train on other samples than planned.
  void stage() {
    staged = copy.begin(*uncopied);
    uncopied.reset();
  }

  // Begins to copy the next batch if it is already built.
  void stage_next() {
    if (!copy.needed() || staged) return;
    try {
      bool ready = false;
      if (!uncopied) uncopied = queue->next_if_ready(ready);
      if (uncopied) stage();
    } catch (...) {  // stage_now() tries it again
    }
  }

  void advance(bool first) {
    batch.reset();
    waited_ns = 0;
    meter.on_request();
    if (timer != nullptr) timer->request_batch(current.block == nullptr || current.last_of_step());
    stage_now();
    const MicroBatch next = staged->micro_batch;
    if (!next.block) {
      staged.reset();
      meter.on_batch(waited_ns, true);
      if (!current.block && resumed_state.empty()) print_empty_epoch(next.epoch);
      ended = true;
      next_epoch = next.epoch + 1;
      return;
    }
    if (next.block != current.block) {
      compare_plans(*next.block);
      print_step_sizes(*next.block);
    }
    batch = copy.finish(*staged);
    current = next;
    staged.reset();
    if (timer != nullptr) {
      timer->add_batch(counts_of_batch(), batch->last_of_step);
      timer->add_skipped_samples(static_cast<std::uint64_t>(batch->skipped));
    }
    stage_next();
    meter.on_batch(waited_ns, first);
  }

  int rank;
  profile::StepTimer* timer;
  LoaderOptions options;
  PlanOptions plan_options;
  bool step_sizes_due;
  bool empty_epoch_due;
  bool same_epoch_due;
  PrefetchOptions prefetch;
  Lengths lengths;
  LoaderMeter meter;
  std::unique_ptr<HostBatchBuilder> builder;
  LengthsInMemory source;
  EpochCursor cursor;
  comm::Communicator* communicator;  // null: there is one rank, or no world
  DeviceCopy copy;

  // Where the next begin() starts: at the beginning of the epoch, or at the position of a resumed state.
  struct Start {
    std::uint64_t epoch = 0;
    std::shared_ptr<BlockwisePlanner> planner;
    std::string state;
  };
  Start start;
  MicroBatch current;                       // the last one returned; its block is null before the first
  std::string resumed_state;                // this epoch began with it; empty: at the epoch's start
  std::optional<std::uint64_t> next_epoch;  // the complete epoch that the queue continues with, if any
  std::optional<Batch> batch;
  std::optional<HostBatch> uncopied;  // the next one, if its copy has not begun
  std::optional<HostBatch> staged;    // the next one, being copied to the device
  std::uint64_t waited_ns = 0;        // for the current batch
  bool ended = true;
  std::optional<OrderedPrefetch<MicroBatch, HostBatch>> queue;  // the last member: its threads use the others
};

Loader::Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options) {
  comm::Communicator* const communicator = world.size() > 1 ? &world.communicator() : nullptr;
  plan.ranks = world.size();
  make(reader, with_step_tokens(std::move(plan), options), world.rank(), &world.timer(), communicator,
       options);
  if (world.local_rank() != 0) return;
  if (const auto advice = advice_on_memory(memory(), world.local_size(), available_memory())) {
    fmt::print(stderr, "lockstep: {}: {}\n", world.node_name(), *advice);
  }
}

Loader::Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
               LoaderOptions options) {
  make(reader, with_step_tokens(std::move(plan), options), rank, timer, nullptr, options);
}

void Loader::make(const pack::Reader& reader, const PlanOptions& plan, int rank, profile::StepTimer* timer,
                  comm::Communicator* communicator, const LoaderOptions& options) {
  const auto make_own = [&] {
    check_loader_options(plan, rank, options);
    state_ = std::make_unique<State>(reader, plan, rank, timer, communicator, options);
    if (rank == 0) state_->print_advice();
  };
  if (communicator == nullptr) return make_own();
  if (const auto failure = comm::run_on_all_ranks(*communicator, "constructing the loader", make_own)) {
    if (failure->own) std::rethrow_exception(failure->own);
    fail("rank {} could not construct its loader: {}", failure->rank, failure->reason);
  }
  state_->compare_loaders();
}

Loader::~Loader() = default;

void Loader::set_epoch(std::uint64_t epoch) {
  if (state_->options.mixture && epoch != 0) {
    fail_usage("a mixture has only epoch 0, not {}: its data sets count their own epochs", epoch);
  }
  State::Start& start = state_->start;
  if (epoch == start.epoch) return;
  if (!start.state.empty()) {
    fail_usage(
        "epoch {} cannot be chosen: the resumed state continues in epoch {}; begin the loop over epochs at loader.epoch()",
        epoch, start.epoch);
  }
  start = {.epoch = epoch, .planner = nullptr, .state = {}};
}

std::uint64_t Loader::epoch() const {
  return state_->start.epoch;
}

std::string Loader::state() const {
  const State& s = *state_;
  if (!s.start.state.empty()) return s.start.state;
  if (!s.current.block && !s.resumed_state.empty()) return s.resumed_state;
  LoaderState state{.seed = s.plan_options.seed, .epoch = s.current.epoch, .plan = {}};
  if (s.current.block) {
    // An incomplete step counts as not begun, because its gradient is not saved.
    state.plan = state_after(s.current.block->block, s.current.step + (s.current.last_of_step() ? 1 : 0));
  } else {
    PlanOptions options = s.plan_options;
    options.epoch = s.current.epoch;
    state.plan = make_planner(s.source, options, s.options)->state();
  }
  return to_text(state);
}

void Loader::save(torch::serialize::OutputArchive& archive) const {
  archive.write("state", state());
}

void Loader::load(torch::serialize::InputArchive& archive) {
  State& s = *state_;
  const std::string text = value_in(archive, "state").toStringRef();
  const LoaderState state = state_from_text(text);
  if (state.seed != s.plan_options.seed) {
    fail("cannot resume: the seed of the state is {}, but the loader has seed {}", state.seed,
         s.plan_options.seed);
  }
  PlanOptions options = s.plan_options;
  options.epoch = state.epoch;
  auto planner = make_planner(s.source, options, s.options, &state.plan);
  s.start = {.epoch = state.epoch, .planner = std::move(planner), .state = text};
}

Loader::Iterator Loader::begin() {
  State& s = *state_;
  if (s.communicator != nullptr) {
    check_loaders(*s.communicator, {{"the epoch", std::to_string(s.start.epoch)},
                                    {"the resumed state", summary_of(s.start.state)}});
  }
  s.print_same_epoch();
  State::Start start = std::exchange(s.start, {.epoch = s.start.epoch, .planner = nullptr, .state = {}});
  const bool queue_continues =
      s.queue && s.next_epoch == start.epoch && !start.planner && s.options.next_epoch_ahead;
  s.current = {.epoch = start.epoch};
  s.resumed_state = std::move(start.state);
  s.next_epoch.reset();
  const auto move = [&] { s.cursor.move_to(start.epoch, std::move(start.planner)); };
  if (!s.queue) {
    move();
    s.queue.emplace(
        s.prefetch, [&s] { return s.cursor.next(); },
        [&s](const MicroBatch& micro_batch, int worker) { return s.build(micro_batch, worker); });
  } else if (!queue_continues) {
    s.uncopied.reset();
    s.staged.reset();
    s.queue->restart(move);
  }
  s.ended = false;
  s.advance(true);
  return Iterator(s);
}

LoaderMemory Loader::memory() const {
  return state_->memory();
}

std::string Loader::describe() const {
  const State& s = *state_;
  return fmt::format("{} worker{}, {} batch{} ahead: at most {} of {}memory", s.prefetch.threads,
                     s.prefetch.threads == 1 ? "" : "s", s.prefetch.ahead, s.prefetch.ahead == 1 ? "" : "es",
                     format_bytes(memory().total()), memory().page_locked ? "page-locked " : "");
}

LoaderAdvice Loader::advice() const {
  LoaderAdvice advice = state_->meter.advice();
  advice.memory = memory();
  advice.memory.batches =
      advice.memory.batches - state_->prefetch.ahead + static_cast<std::size_t>(advice.batches_ahead);
  return advice;
}

std::vector<MixtureProgress> Loader::mixture_progress() const {
  const State& s = *state_;
  if (!s.options.mixture) fail_usage("the loader has no mixture");
  if (s.current.block) {
    return progress_of(*s.options.mixture, state_after(s.current.block->block, s.current.step));
  }
  return progress_of(*s.options.mixture, state_from_text(state()).plan);
}

const Batch& Loader::Iterator::operator*() const {
  return *state_->batch;
}

Loader::Iterator& Loader::Iterator::operator++() {
  state_->advance(false);
  return *this;
}

bool Loader::Iterator::done() const {
  return state_->ended;
}

}  // namespace lockstep::data
