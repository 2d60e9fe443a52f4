#include "runtime/data/plan/planner.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/error.h"
#include "runtime/data/plan/json_fields.h"
#include "runtime/data/plan/steps/step_packer.h"

namespace lockstep::data {

Plan::Plan(PlanOptions options, std::size_t samples, std::string fingerprint)
    : options_(std::move(options)), samples_(samples), fingerprint_(std::move(fingerprint)) {
}

std::span<const SampleId> Plan::step_samples(std::size_t step) const {
  const std::size_t first_batch = begin_of(rank_ends_, step * ranks());
  const std::size_t end_batch = rank_ends_[(step + 1) * ranks() - 1];
  const std::size_t begin = begin_of(batch_ends_, first_batch);
  return std::span(ids_).subspan(begin, begin_of(batch_ends_, end_batch) - begin);
}

std::string Plan::steps_fingerprint() const {
  XXH64_hash_t hash = 0;
  const auto add = [&hash](const auto& values) {
    hash = XXH3_64bits_withSeed(values.data(), values.size() * sizeof values[0], hash);
  };
  add(ids_);
  add(batch_ends_);
  add(rank_ends_);
  return fmt::format("{:016x}", hash);
}

void Plan::append_step(const std::vector<std::vector<std::vector<SampleId>>>& ranks) {
  for (const auto& batches : ranks) {
    for (const std::vector<SampleId>& batch : batches) {
      ids_.insert(ids_.end(), batch.begin(), batch.end());
      batch_ends_.push_back(ids_.size());
    }
    rank_ends_.push_back(batch_ends_.size());
  }
}

void Plan::append(const Plan& more) {
  const std::size_t first_id = ids_.size();
  const std::size_t first_batch = batch_ends_.size();
  ids_.insert(ids_.end(), more.ids_.begin(), more.ids_.end());
  for (const std::size_t end : more.batch_ends_) batch_ends_.push_back(first_id + end);
  for (const std::size_t end : more.rank_ends_) rank_ends_.push_back(first_batch + end);
}

Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options, std::string fingerprint) {
  if (fingerprint.empty()) fingerprint = fingerprint_of(lengths);
  const LengthsInMemory source(lengths, std::move(fingerprint));
  EpochPlanner planner(source, options);
  Plan plan(options, lengths.size(), source.fingerprint());
  plan.reserve(lengths.size());
  for (PlannedBlock block; planner.next_block(block);) plan.append(block.plan);
  return plan;
}

std::string fingerprint_of(std::span<const std::uint32_t> lengths) {
  // Hashes the memory, which holds little-endian integers on all supported machines.
  return fmt::format("lengths-{:016x}", XXH3_64bits(lengths.data(), lengths.size_bytes()));
}

MicroBatchShape shape_of(std::span<const SampleId> samples, std::span<const std::uint32_t> lengths,
                         const PlanOptions& options) {
  MicroBatchShape shape{.samples = static_cast<std::int64_t>(samples.size())};
  for (const SampleId id : samples) {
    const std::int64_t length = planned_length(id, lengths[sample_of(id)], options);
    shape.longest = std::max(shape.longest, length);
    shape.tokens += length;
    shape.squares += length * length;
  }
  if (options.padded && shape.longest > 0) {
    shape.longest = static_cast<std::int64_t>(
        padded_length(static_cast<std::uint64_t>(shape.longest), options.pad_multiple, options.cap));
    shape.tokens = shape.samples * shape.longest;
    shape.squares = shape.tokens * shape.longest;
  }
  return shape;
}

MicroBatchShape largest_micro_batch(const Plan& plan, std::span<const std::uint32_t> lengths) {
  MicroBatchShape largest;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (int rank = 0; rank < plan.options().ranks; ++rank) {
      for (std::size_t i = 0; i < plan.micro_batches(step, rank); ++i) {
        const MicroBatchShape found = shape_of(plan.micro_batch(step, rank, i), lengths, plan.options());
        if (cost_of(found, plan.options().cost) > cost_of(largest, plan.options().cost)) largest = found;
      }
    }
  }
  return largest;
}

std::string describe_step_sizes(const Plan& plan, std::span<const std::uint32_t> lengths) {
  const std::size_t steps = std::max<std::size_t>(plan.steps(), 2) - 1;
  std::uint64_t all = 0;
  std::uint64_t largest = 0;
  for (std::size_t step = 0; step < std::min(steps, plan.steps()); ++step) {
    std::uint64_t tokens = 0;
    for (const SampleId id : plan.step_samples(step))
      tokens += planned_length(id, lengths[sample_of(id)], plan.options());
    all += tokens;
    largest = std::max(largest, tokens);
  }
  const auto budget = static_cast<double>(step_budget(plan.options()));
  return fmt::format(
      "steps hold {:.2f} of the {} tokens of step_tokens on average, and at most {:.2f} ({} step{})",
      static_cast<double>(all) / budget / static_cast<double>(steps), step_budget(plan.options()),
      static_cast<double>(largest) / budget, steps, steps == 1 ? "" : "s");
}

namespace {

constexpr std::uint64_t kStateVersion = 3;

PlanState read(const nlohmann::json& json) {
  using Counts = std::vector<std::uint64_t>;
  if (const auto version = json_member<std::uint64_t>(json, "version"); version != kStateVersion) {
    fail("it has version {}, but this program reads version {}: use the version of Lockstep that wrote it",
         version, kStateVersion);
  }
  PlanState state{.data = json_member<std::string>(json, "data"),
                  .order = json_member<std::string>(json, "order"),
                  .steps = json_member<std::uint64_t>(json, "steps"),
                  .position = {.block = json_member<std::uint64_t>(json, "block"),
                               .used = json_member<std::uint64_t>(json, "used")}};
  if (json.contains("ahead")) state.position.ahead = json_member<Counts>(json, "ahead");
  if (const auto mixture = json.find("mixture"); mixture != json.end()) {
    state.position.mixture = {.drawn = json_member<Counts>(*mixture, "drawn"),
                              .piece = json_member<Counts>(*mixture, "piece"),
                              .tokens = json_member<Counts>(*mixture, "tokens")};
    if (mixture->contains("waiting"))
      state.position.mixture->waiting = json_member<Counts>(*mixture, "waiting");
  }
  return state;
}

}  // namespace

void to_json(nlohmann::json& json, const PlanState& state) {
  const PlanPosition& position = state.position;
  json = {{"version", kStateVersion}, {"data", state.data},      {"order", state.order},
          {"steps", state.steps},     {"block", position.block}, {"used", position.used}};
  if (!position.ahead.empty()) json["ahead"] = position.ahead;
  if (!position.mixture) return;
  const MixturePosition& mixture = *position.mixture;
  json["mixture"] = {{"drawn", mixture.drawn}, {"piece", mixture.piece}, {"tokens", mixture.tokens}};
  if (!mixture.waiting.empty()) json["mixture"]["waiting"] = mixture.waiting;
}

void from_json(const nlohmann::json& json, PlanState& state) {
  try {
    state = read(json);
  } catch (const Error& error) {
    fail("cannot read the planner's state: {}", error.what());
  }
}

PlanState state_after(const PlannedBlock& block, std::size_t steps) {
  if (steps > block.after.size()) {
    fail_usage("a block of {} steps has no state after {} steps", block.after.size(), steps);
  }
  PlanState state = block.start;
  if (steps > 0) state.position = block.after[steps - 1];
  state.steps += steps;
  return state;
}

BlockwisePlanner::BlockwisePlanner(const LengthSource& source, const PlanOptions& options)
    : source_(source), options_(options) {
  check_options(options);
  packer_ = std::make_unique<StepPacker>(options);
  state_.data = source.fingerprint();
}

BlockwisePlanner::~BlockwisePlanner() = default;

void BlockwisePlanner::expect_same_order(const PlanState& state, const char* order_options) const {
  if (state.data != state_.data) {
    fail("cannot resume: the state belongs to other data ({}) than this run ({})", state.data, state_.data);
  }
  if (state.order != state_.order) {
    fail(
        "cannot resume: the state belongs to another order of samples ({}) than this run ({}): use the same {}",
        state.order, state_.order, order_options);
  }
}

}  // namespace lockstep::data
