#include "runtime/data/loader.h"

#include <torch/torch.h>

#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/units.h"
#include "runtime/comm/world.h"
#include "runtime/data/batch/device_copy.h"
#include "runtime/data/cost_learner.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/lengths.h"
#include "runtime/data/loader_advice.h"
#include "runtime/data/loader_agreement.h"
#include "runtime/data/loader_setup.h"
#include "runtime/data/loader_state.h"
#include "runtime/data/ordered_prefetch.h"
#include "runtime/data/plan/order/length_source.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::data {
namespace {

PlanOptions for_ranks(PlanOptions plan, int ranks) {
  plan.ranks = ranks;
  return plan;
}

// Images are all alike: each micro-batch is to have as many as the cap says.
PlanOptions with_step_tokens(PlanOptions plan, const LoaderOptions& options) {
  if (options.images && plan.step_tokens == 0) {
    plan.step_tokens =
        plan.cap * static_cast<std::uint64_t>(plan.ranks) * static_cast<std::uint64_t>(plan.accumulate);
  }
  return plan;
}

}  // namespace

struct Loader::State {
  State(const pack::Reader& reader, const PlanOptions& plan, int rank, profile::StepTimer* its_timer,
        comm::Communicator* its_communicator, const LoaderOptions& its_options)
      : timer(its_timer),
        options(its_options),
        plan_options(plan),
        prefetch(prefetch_options(options, batch_bytes(plan, options))),
        lengths(planned_lengths(reader, plan, options)),
        builder(make_builder(reader, lengths, plan, rank, prefetch.threads, options)),
        source(lengths.tokens, lengths.fingerprint),
        cursor([this](const PlanOptions& wanted_plan) { return make_planner(source, wanted_plan, options); },
               {.plan = plan,
                .rank = rank,
                .follow = options.next_epoch_ahead && !options.mixture,
                .waits_for_costs = options.learn != Learn::nothing}),
        communicator(its_communicator),
        learner(options.learn, plan.cost, plan.speeds, communicator, timer, options.step_seconds),
        copy(options.device) {
    if (options.mixture) {
      plan_options.epoch = 0;
      make_planner(source, plan_options, options);  // says what is wrong with it
    }
    wanted.epoch = at.epoch = plan_options.epoch;
  }
  ~State() { cursor.cancel(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // All ranks call it, when each has made its own.
  void meet() { check_agreement(*communicator, planned_from(lengths, plan_options, options)); }

  // Each rank plans for itself. Where two do not come to the same plan (other processors, another library),
  // ranks would use some samples twice and others never.
  void compare_plans(const EpochBlock& begun) const {
    if (communicator == nullptr) return;
    check_agreement(*communicator, {{fmt::format("the plan from step {} on", begun.block.start.steps),
                                     fmt::format("{} steps of {} samples, {}", begun.block.plan.steps(),
                                                 begun.block.plan.sample_ids().size(),
                                                 begun.block.plan.steps_fingerprint())}});
  }

  HostBatch build(const MicroBatch& micro_batch, int worker) {
    const std::uint64_t begin = monotonic_ns();
    HostBatch built = builder->build(micro_batch, worker);
    if (!micro_batch.block) return built;
    meter.built(monotonic_ns() - begin);
    if (timer != nullptr) timer->add_bytes_read(built.bytes_read);
    return built;
  }

  // The next batch or end of epoch, waiting for it if it must.
  HostBatch take() {
    if (staged) return *std::exchange(staged, std::nullopt);
    bool ready = false;
    std::optional<HostBatch> taken = queue->next_if_ready(ready);
    if (!ready) {
      const std::uint64_t begin = monotonic_ns();
      std::optional<profile::StepTimer::Scope> scope;
      if (timer != nullptr) scope.emplace(timer->phase(profile::Phase::data_wait));
      taken = queue->next();
      waited_ns = monotonic_ns() - begin;
    }
    if (!taken) fail("the loader was asked for a batch after its last epoch");
    return copy.begin(std::move(*taken));
  }

  // Begins the copy of the batch after the one that is handed out, if it is built.
  void stage_next() {
    if (!copy.needed() || staged) return;
    try {
      bool ready = false;
      auto taken = queue->next_if_ready(ready);
      if (taken) staged = copy.begin(std::move(*taken));
    } catch (...) {  // comes again when its turn comes
    }
  }

  void advance(bool first) {
    batch.reset();
    waited_ns = 0;
    meter.asked();
    learner.asked();
    HostBatch host = take();
    if (!host.micro_batch.block) {
      meter.got(waited_ns, true);
      ended = true;
      comes_next = host.micro_batch.epoch + 1;
      return;
    }
    if (host.micro_batch.block != at.block) compare_plans(*host.micro_batch.block);
    at = host.micro_batch;
    learner.handed_out(host.work_tokens, host.work_squares);
    batch = copy.finish(std::move(host));
    stage_next();
    if (options.learn != Learn::nothing && at.index == 0 && at.step == at.block->decides_at()) {
      const Learnt& learnt = learner.decide();
      cursor.plan_on(learnt.cost, learnt.speeds);
    }
    meter.got(waited_ns, first);
  }

  // The options of the blocks to come.
  PlanOptions plan_now() const {
    PlanOptions now = plan_options;
    now.cost = learner.learnt().cost;
    now.speeds = learner.learnt().speeds;
    return now;
  }

  profile::StepTimer* timer;
  LoaderOptions options;
  PlanOptions plan_options;
  PrefetchOptions prefetch;
  Lengths lengths;
  LoaderMeter meter;
  std::unique_ptr<HostBatchBuilder> builder;
  LengthsInMemory source;
  EpochCursor cursor;
  comm::Communicator* communicator;  // null: this rank is on its own
  CostLearner learner;
  DeviceCopy copy;

  // Where the next begin() starts: at the epoch's first micro-batch, or where a state says.
  struct Start {
    std::uint64_t epoch = 0;
    std::shared_ptr<BlockwisePlanner> planner;
    std::string state;
  };
  Start wanted;
  MicroBatch at;                            // that was handed out last; no block: none of this epoch
  std::string begun_at;                     // the state with which this epoch was begun; empty: whole
  std::optional<std::uint64_t> comes_next;  // the epoch that the queue goes on with, where it is to be whole
  std::optional<Batch> batch;
  std::optional<HostBatch> staged;  // on its way to the device
  std::uint64_t waited_ns = 0;      // for the batch that is handed out
  bool ended = true;
  std::optional<OrderedPrefetch<MicroBatch, HostBatch>> queue;  // last: its threads use the others
};

Loader::Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options) {
  comm::Communicator* const communicator = world.size() > 1 ? &world.communicator() : nullptr;
  make(reader, with_step_tokens(for_ranks(std::move(plan), world.size()), options), world.rank(),
       &world.timer(), communicator, options);
}

Loader::Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
               LoaderOptions options) {
  if (options.learn != Learn::nothing && (plan.ranks > 1 || timer == nullptr)) {
    fail_usage("a loader learns from the steps of all ranks: give it the world");
  }
  make(reader, with_step_tokens(std::move(plan), options), rank, timer, nullptr, options);
}

void Loader::make(const pack::Reader& reader, const PlanOptions& plan, int rank, profile::StepTimer* timer,
                  comm::Communicator* communicator, const LoaderOptions& options) {
  const auto make_own = [&] {
    check_loader_options(plan, rank, options);
    state_ = std::make_unique<State>(reader, plan, rank, timer, communicator, options);
  };
  if (communicator == nullptr) return make_own();
  made_on_all_ranks(*communicator, make_own);
  state_->meet();
}

Loader::~Loader() = default;

void Loader::set_epoch(std::uint64_t epoch) {
  if (state_->options.mixture && epoch != 0) {
    fail_usage("a mixture has no epoch {}: its data sets count their own", epoch);
  }
  const State::Start& wanted = state_->wanted;
  if (!wanted.state.empty() && epoch != wanted.epoch) {
    fail_usage(
        "epoch {} cannot be chosen: the resumed state goes on in epoch {}; begin the loop over epochs at "
        "loader.epoch()",
        epoch, wanted.epoch);
  }
  if (epoch != wanted.epoch) state_->wanted = {.epoch = epoch, .planner = nullptr, .state = {}};
}

std::uint64_t Loader::epoch() const {
  return state_->wanted.epoch;
}

std::string Loader::state() const {
  const State& s = *state_;
  if (!s.wanted.state.empty()) return s.wanted.state;
  if (!s.at.block && !s.begun_at.empty()) return s.begun_at;
  LoaderState state{.seed = s.plan_options.seed, .epoch = s.at.epoch, .plan = {}};
  if (s.options.learn != Learn::nothing) {
    state.learnt = {.cost = s.learner.learnt().cost, .speeds = s.learner.learnt().speeds};
  }
  if (s.at.block) {
    // A step that has begun counts as not begun: its gradient is not saved.
    state.plan = state_after(s.at.block->block, s.at.step + (s.at.last_of_step() ? 1 : 0));
  } else {
    PlanOptions options = s.plan_now();
    options.epoch = s.at.epoch;
    state.plan = make_planner(s.source, options, s.options)->state();
  }
  return to_text(state);
}

void Loader::resume(std::string_view text) {
  State& s = *state_;
  const LoaderState state = state_from_text(text);
  if (state.seed != s.plan_options.seed) {
    fail("cannot resume: the state's seed is {}, not {}", state.seed, s.plan_options.seed);
  }
  PlanOptions options = s.plan_now();
  options.epoch = state.epoch;
  if (s.options.learn != Learn::nothing && state.learnt) {
    options.cost = state.learnt->cost;
    // Speeds are of those ranks that there were.
    const bool same_ranks = state.learnt->speeds.size() == static_cast<std::size_t>(options.ranks);
    options.speeds = same_ranks ? state.learnt->speeds : s.plan_options.speeds;
  }
  auto planner = make_planner(s.source, options, s.options, &state.plan);
  s.learner.begin_with(options.cost, options.speeds);
  s.wanted = {.epoch = state.epoch, .planner = std::move(planner), .state = std::string(text)};
}

Loader::Iterator Loader::begin() {
  State& s = *state_;
  if (s.communicator != nullptr) {
    check_agreement(*s.communicator, {{"the epoch", std::to_string(s.wanted.epoch)},
                                      {"the state it resumes", in_short(s.wanted.state)}});
  }
  State::Start start = std::exchange(s.wanted, {.epoch = s.wanted.epoch, .planner = nullptr, .state = {}});
  const bool goes_on = s.queue && s.comes_next == start.epoch && !start.planner && s.options.next_epoch_ahead;
  s.at = {.epoch = start.epoch};
  s.begun_at = std::move(start.state);
  s.comes_next.reset();
  const auto move = [&] {
    s.cursor.set(s.plan_now().cost, s.plan_now().speeds);
    s.cursor.move_to(start.epoch, std::move(start.planner));
  };
  if (!s.queue) {
    move();
    s.queue.emplace(
        s.prefetch, [&s] { return s.cursor.next(); },
        [&s](const MicroBatch& micro_batch, int worker) { return s.build(micro_batch, worker); });
  } else if (!goes_on) {
    s.staged.reset();
    s.cursor.cancel();
    s.queue->restart(move);
  }
  s.ended = false;
  s.advance(true);
  return Iterator(s);
}

LoaderMemory Loader::memory() const {
  const State& s = *state_;
  const std::size_t on_their_way = s.copy.needed() ? 2 : 0;
  return {.batch = s.builder->buffers().capacity(),
          .batches = s.prefetch.ahead + 1 + on_their_way,
          .page_locked = s.builder->buffers().page_locked()};
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

const Learnt& Loader::learnt() const {
  return state_->learner.learnt();
}

std::vector<MixtureProgress> Loader::mixture_progress() const {
  const State& s = *state_;
  if (!s.options.mixture) fail_usage("the loader has no mixture");
  if (s.at.block) return progress_of(*s.options.mixture, state_after(s.at.block->block, s.at.step));
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
