#include "runtime/data/loader.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/cpu_list.h"
#include "common/environment.h"
#include "common/error.h"
#include "runtime/comm/world.h"
#include "runtime/data/batch_builder.h"
#include "runtime/data/lengths.h"
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

PrefetchOptions prefetch_options(const LoaderOptions& options) {
  PrefetchOptions prefetch;
  std::size_t threads = 1;
  if (const auto workers = environment::get("LOCKSTEP_WORKER_CPUS")) {
    prefetch.cpus = parse_cpu_list(*workers);
    threads = std::clamp<std::size_t>(prefetch.cpus.size(), 1, kMostWorkers);
  } else if (const auto compute = environment::get("LOCKSTEP_CPUS")) {
    prefetch.cpus = parse_cpu_list(*compute);  // OpenMP may have put this thread on a single one of them
  }
  prefetch.threads = options.workers > 0 ? options.workers : static_cast<int>(threads);
  prefetch.ahead = static_cast<std::size_t>(options.batches_ahead);
  return prefetch;
}

}  // namespace

struct Loader::State {
  const pack::Reader& reader;
  PlanOptions options;
  int rank;
  profile::StepTimer* timer;
  PrefetchOptions prefetch;
  Lengths lengths;
  std::shared_ptr<const Plan> plan;  // of what `parts` leave of options.epoch

  std::vector<EpochPart> parts;  // that were done before a resume, with other geometry
  std::uint64_t begins_at = 0;   // micro-batches of the plan that were done before the next begin()
  std::uint64_t handed_out = 0;  // micro-batches of the plan, those before begins_at included
  bool resumed = false;          // and begin() has not been called since

  // Optimizer steps that the parts took, begun ones included.
  std::size_t steps_before() const {
    std::size_t steps = 0;
    for (const EpochPart& part : parts) {
      const auto accumulate = static_cast<std::uint64_t>(part.options.accumulate);
      steps += (part.micro_batches + accumulate - 1) / accumulate;
    }
    return steps;
  }

  void start_over(std::uint64_t epoch) {
    const bool planned = plan && parts.empty() && options.epoch == epoch;
    options.epoch = epoch;
    parts.clear();
    begins_at = handed_out = 0;
    resumed = false;
    if (!planned) make();
  }

  void make() {
    plan = std::make_shared<const Plan>(plan_rest(lengths.tokens, lengths.fingerprint, options, parts));
  }
};

struct Loader::Iterator::Run {
  BatchBuilder builder;
  profile::StepTimer* timer;
  std::uint64_t& handed_out;
  std::optional<Batch> batch;
  OrderedPrefetch<Batch> prefetch;  // last: its threads use the builder

  explicit Run(State& state)
      : builder(state.reader, state.plan, state.rank),
        timer(state.timer),
        handed_out(state.handed_out),
        prefetch(state.plan->micro_batches_per_rank() - state.begins_at, state.prefetch,
                 [this, first = state.begins_at, steps_before = state.steps_before(),
                  token_bytes = state.reader.token_bytes()](std::size_t index) {
                   Batch built = builder.build(first + index);
                   built.step += static_cast<std::int64_t>(steps_before);
                   if (timer != nullptr) {
                     timer->add_bytes_read(static_cast<std::uint64_t>(built.tokens.size(0) * token_bytes));
                   }
                   return built;
                 }) {}

  void advance() {
    if (batch) builder.recycle(*std::exchange(batch, std::nullopt));
    std::optional<profile::StepTimer::Scope> scope;
    if (timer != nullptr) scope.emplace(timer->phase(profile::Phase::data_wait));
    batch = prefetch.next();
    if (batch) ++handed_out;
  }
};

Loader::Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options)
    : Loader(reader, for_ranks(plan, world.size()), world.rank(), &world.timer(), options) {
}

Loader::Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
               LoaderOptions options) {
  if (rank < 0 || rank >= plan.ranks) fail_usage("rank {} is not one of {} ranks", rank, plan.ranks);
  if (options.workers < 0) fail_usage("workers must not be negative, but is {}", options.workers);
  if (options.batches_ahead < 1)
    fail_usage("batches_ahead must be at least 1, not {}", options.batches_ahead);
  if (plan.cap > kLargestCap) fail_usage("a cap of {} is over the largest, {}", plan.cap, kLargestCap);
  if (plan.padded) fail_usage("the loader's batches have no padding: plan them without `padded`");
  Lengths lengths = lengths_from_pack(reader, "the loader's data");
  for (std::size_t i = 0; i < lengths.tokens.size(); ++i) {
    if (lengths.tokens[i] > plan.cap) {
      fail(
          "sample '{}' (number {}) has {} tokens, over the cap of {} per micro-batch: raise the cap or "
          "shorten it",
          reader.key(i), i, lengths.tokens[i], plan.cap);
    }
  }
  state_ = std::make_unique<State>(
      State{reader, plan, rank, timer, prefetch_options(options), std::move(lengths), nullptr, {}});
  state_->start_over(plan.epoch);
}

Loader::~Loader() = default;

void Loader::set_epoch(std::uint64_t epoch) {
  if (state_->options.epoch != epoch) state_->start_over(epoch);
}

std::uint64_t Loader::epoch() const {
  return state_->options.epoch;
}

const Plan& Loader::plan() const {
  return *state_->plan;
}

std::string Loader::state() const {
  LoaderState state{.data = state_->lengths.fingerprint,
                    .order = state_->options.order,
                    .seed = state_->options.seed,
                    .epoch = state_->options.epoch,
                    .parts = state_->parts};
  if (state_->handed_out > 0) state.parts.push_back({state_->options, state_->handed_out});
  return to_text(state);
}

void Loader::resume(std::string_view text) {
  LoaderState state = state_from_text(text);
  const PlanOptions& options = state_->options;
  if (state.data != state_->lengths.fingerprint) {
    fail("cannot resume: the state is of data with fingerprint {}, these have {}", state.data,
         state_->lengths.fingerprint);
  }
  if (state.seed != options.seed)
    fail("cannot resume: the state's seed is {}, not {}", state.seed, options.seed);
  if (state.order != options.order) fail("cannot resume: the state's order of samples is another");
  state_->start_over(state.epoch);
  if (!state.parts.empty() && same_geometry(state.parts.back().options, options)) {
    state_->begins_at = state_->handed_out = state.parts.back().micro_batches;
    state.parts.pop_back();
  }
  state_->parts = std::move(state.parts);
  state_->resumed = true;
  if (!state_->parts.empty()) state_->make();
}

Loader::Iterator Loader::begin() {
  if (!state_->resumed) state_->start_over(state_->options.epoch);
  state_->handed_out = state_->begins_at;
  auto run = std::make_unique<Iterator::Run>(*state_);
  state_->resumed = false;
  run->advance();
  return Iterator(std::move(run));
}

Loader::Iterator::Iterator(std::unique_ptr<Run> run) : run_(std::move(run)) {
}
Loader::Iterator::Iterator(Iterator&&) noexcept = default;
Loader::Iterator& Loader::Iterator::operator=(Iterator&&) noexcept = default;
Loader::Iterator::~Iterator() = default;

const Batch& Loader::Iterator::operator*() const {
  return *run_->batch;
}

Loader::Iterator& Loader::Iterator::operator++() {
  run_->advance();
  return *this;
}

bool Loader::Iterator::done() const {
  return !run_->batch.has_value();
}

}  // namespace lockstep::data
