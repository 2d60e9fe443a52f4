#include "runtime/data/loader.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/cpu_list.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/units.h"
#include "runtime/comm/world.h"
#include "runtime/data/batch_builder.h"
#include "runtime/data/device_copy.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/epoch_planner.h"
#include "runtime/data/length_source.h"
#include "runtime/data/lengths.h"
#include "runtime/data/loader_advice.h"
#include "runtime/data/loader_state.h"
#include "runtime/data/ordered_prefetch.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMostWorkers = 4;
constexpr std::uint64_t kLargestCap = std::numeric_limits<std::int32_t>::max();  // cu_seqlens

PlanOptions for_ranks(PlanOptions plan, int ranks) {
  plan.ranks = ranks;
  return plan;
}

PrefetchOptions prefetch_options(const LoaderOptions& options, std::size_t batch_bytes) {
  PrefetchOptions prefetch;
  std::size_t threads = 1;
  if (const auto workers = environment::get("LOCKSTEP_WORKER_CPUS")) {
    prefetch.cpus = parse_cpu_list(*workers);
    threads = std::clamp<std::size_t>(prefetch.cpus.size(), 1, kMostWorkers);
  } else if (const auto compute = environment::get("LOCKSTEP_CPUS")) {
    prefetch.cpus = parse_cpu_list(*compute);  // OpenMP may have put this thread on a single one of them
  }
  prefetch.threads = options.workers > 0 ? options.workers : static_cast<int>(threads);
  prefetch.ahead = std::clamp<std::size_t>(options.bytes_ahead / batch_bytes, 1,
                                           static_cast<std::size_t>(options.batches_ahead));
  return prefetch;
}

Lengths checked_lengths(const pack::Reader& reader, const PlanOptions& plan) {
  Lengths lengths = lengths_from_pack(reader, "the loader's data");
  for (std::size_t i = 0; i < lengths.tokens.size(); ++i) {
    if (lengths.tokens[i] > plan.cap && plan.too_long == TooLong::refuse) {
      fail(
          "sample '{}' (number {}) has {} tokens, over the cap of {} per micro-batch: raise the cap or "
          "shorten it, or say in too_long what is to become of it",
          reader.key(i), i, lengths.tokens[i], plan.cap);
    }
  }
  return lengths;
}

BuildOptions build_options(const PlanOptions& plan, int rank, const LoaderOptions& options, int workers) {
  return {.rank = rank,
          .workers = workers,
          .plan = plan,
          .padding_token = options.padding_token,
          .transform = options.transform,
          .mapped = options.mapped,
          // A LibTorch without CUDA has no page-locked memory and throws.
          .page_locked = options.device.is_cuda() && torch::cuda::is_available()};
}

}  // namespace

struct Loader::State {
  State(const pack::Reader& reader, const PlanOptions& plan, int its_rank, profile::StepTimer* its_timer,
        const LoaderOptions& its_options)
      : rank(its_rank),
        timer(its_timer),
        options(its_options),
        plan_options(plan),
        prefetch(prefetch_options(options, BatchBuilder::buffer_bytes(plan))),
        token_bytes(reader.token_bytes()),
        lengths(checked_lengths(reader, plan)),
        builder(reader, lengths.tokens, build_options(plan, rank, options, prefetch.threads)),
        source(lengths.tokens, lengths.fingerprint),
        cursor(source, plan, options.next_epoch_ahead),
        copy(options.device) {
    wanted.epoch = at.epoch = plan.epoch;
  }

  HostBatch build(const MicroBatch& micro_batch, int worker) {
    const std::uint64_t begin = monotonic_ns();
    HostBatch built = builder.build(micro_batch, worker);
    if (!micro_batch.block) return built;
    meter.built(monotonic_ns() - begin);
    if (timer != nullptr) {
      timer->add_bytes_read(static_cast<std::uint64_t>(built.batch.token_count * token_bytes));
    }
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
    if (!taken) fail("the loader was asked for a batch behind its last epoch");
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
    HostBatch host = take();
    if (!host.micro_batch.block) {
      meter.got(waited_ns, true);
      ended = true;
      comes_next = host.micro_batch.epoch + 1;
      return;
    }
    at = host.micro_batch;
    batch = copy.finish(std::move(host));
    stage_next();
    meter.got(waited_ns, first);
  }

  int rank;
  profile::StepTimer* timer;
  LoaderOptions options;
  PlanOptions plan_options;
  PrefetchOptions prefetch;
  int token_bytes;
  Lengths lengths;
  LoaderMeter meter;
  BatchBuilder builder;
  LengthsInMemory source;
  EpochCursor cursor;
  DeviceCopy copy;

  // Where the next begin() starts: at the epoch's first micro-batch, or where a state says.
  struct Start {
    std::uint64_t epoch = 0;
    std::shared_ptr<EpochPlanner> planner;
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

Loader::Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options)
    : Loader(reader, for_ranks(std::move(plan), world.size()), world.rank(), &world.timer(),
             std::move(options)) {
}

Loader::Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
               LoaderOptions options) {
  check_options(plan);
  if (rank < 0 || rank >= plan.ranks) fail_usage("rank {} is not one of {} ranks", rank, plan.ranks);
  if (options.workers < 0) fail_usage("workers must not be negative, but is {}", options.workers);
  if (options.batches_ahead < 1)
    fail_usage("batches_ahead must be at least 1, not {}", options.batches_ahead);
  if (plan.cap > kLargestCap) fail_usage("a cap of {} is over the largest, {}", plan.cap, kLargestCap);
  state_ = std::make_unique<State>(reader, plan, rank, timer, options);
}

Loader::~Loader() = default;

void Loader::set_epoch(std::uint64_t epoch) {
  if (epoch != state_->wanted.epoch) state_->wanted = {.epoch = epoch, .planner = nullptr, .state = {}};
}

std::uint64_t Loader::epoch() const {
  return state_->wanted.epoch;
}

std::string Loader::state() const {
  const State& s = *state_;
  if (!s.wanted.state.empty()) return s.wanted.state;
  if (!s.at.block && !s.begun_at.empty()) return s.begun_at;
  LoaderState state{.seed = s.plan_options.seed, .epoch = s.at.epoch, .plan = {}};
  if (s.at.block) {
    state.plan = s.at.block->planner->state_after(s.at.block->block, s.at.index + 1);
  } else {
    PlanOptions options = s.plan_options;
    options.epoch = s.at.epoch;
    EpochPlanner planner(s.source, options);
    PlannedBlock first;
    planner.next_block(first);
    state.plan = planner.state_after(first, 0);
  }
  return to_text(state);
}

void Loader::resume(std::string_view text) {
  State& s = *state_;
  const LoaderState state = state_from_text(text);
  if (state.seed != s.plan_options.seed) {
    fail("cannot resume: the state's seed is {}, not {}", state.seed, s.plan_options.seed);
  }
  PlanOptions options = s.plan_options;
  options.epoch = state.epoch;
  s.wanted = {.epoch = state.epoch,
              .planner = std::make_shared<EpochPlanner>(s.source, options, state.plan),
              .state = std::string(text)};
}

Loader::Iterator Loader::begin() {
  State& s = *state_;
  State::Start start = std::exchange(s.wanted, {.epoch = s.wanted.epoch, .planner = nullptr, .state = {}});
  const bool goes_on = s.queue && s.comes_next == start.epoch && !start.planner && s.options.next_epoch_ahead;
  s.at = {.block = nullptr, .epoch = start.epoch, .index = 0, .step = 0};
  s.begun_at = std::move(start.state);
  s.comes_next.reset();
  const auto move = [&] { s.cursor.move_to(start.epoch, std::move(start.planner)); };
  if (!s.queue) {
    move();
    s.queue.emplace(
        s.prefetch, [&s] { return s.cursor.next(); },
        [&s](const MicroBatch& micro_batch, int worker) { return s.build(micro_batch, worker); });
  } else if (!goes_on) {
    s.staged.reset();
    s.queue->restart(move);
  }
  s.ended = false;
  s.advance(true);
  return Iterator(s);
}

LoaderMemory Loader::memory() const {
  const State& s = *state_;
  const std::size_t on_their_way = s.copy.needed() ? 2 : 0;
  return {.batch = s.builder.buffers().capacity(),
          .batches = s.prefetch.ahead + 1 + on_their_way,
          .page_locked = s.builder.buffers().page_locked()};
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
