#include "runtime/data/plan/tool/rank_part.h"

#include <algorithm>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/error.h"
#include "common/launcher.h"

namespace lockstep::data {
namespace {

constexpr int kVersion = 1;

std::unique_ptr<EpochPlanner> make_planner(const LengthSource& source, const PlanOptions& options,
                                           const std::string& from) {
  if (from.empty()) return std::make_unique<EpochPlanner>(source, options);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(from);
  } catch (const nlohmann::json::exception&) {
    fail_usage("--from must be the \"state\" of a step that make --rank printed");
  }
  PlanState state;
  from_json(json, state);
  return std::make_unique<EpochPlanner>(source, options, state);
}

class StepLines {
 public:
  StepLines(const Lengths& lengths, const PlanOptions& options, const RankPart& part)
      : lengths_(lengths.tokens), loss_tokens_(part.loss_tokens), options_(options), rank_(part.rank) {}

  std::string operator()(const PlannedBlock& block, std::size_t step) const {
    std::uint64_t tokens = 0;
    std::uint64_t loss_tokens = 0;
    SampleId shortest = 0;
    std::uint32_t shortest_length = 0;
    for (const SampleId id : block.plan.step_samples(step)) {
      const std::uint32_t length = length_of(id);
      tokens += length;
      loss_tokens += loss_tokens_.empty() ? length : loss_tokens_[sample_of(id)];
      if (shortest_length == 0 || length < shortest_length) {
        shortest = id;
        shortest_length = length;
      }
    }
    std::uint64_t rank_tokens = 0;
    auto batches = nlohmann::json::array();
    bool empty = block.plan.micro_batches(step, rank_) == 0;
    for (std::size_t m = 0; m < block.plan.micro_batches(step, rank_); ++m) {
      const auto samples = block.plan.micro_batch(step, rank_, m);
      empty = empty || samples.empty();
      for (const SampleId id : samples) rank_tokens += length_of(id);
      batches.push_back(std::vector<SampleId>(samples.begin(), samples.end()));
    }
    nlohmann::ordered_json line = {{"step", block.start.steps + step},
                                   {"tokens", tokens},
                                   {"rank_tokens", rank_tokens},
                                   {"loss_tokens", loss_tokens},
                                   {"batches", std::move(batches)}};
    if (empty) line["shortest"] = shortest;
    line["state"] = nlohmann::json(state_after(block, step + 1));
    return line.dump() + '\n';
  }

 private:
  std::uint32_t length_of(SampleId id) const { return planned_length(id, lengths_[sample_of(id)], options_); }

  const std::vector<std::uint32_t>& lengths_;
  const std::vector<std::uint32_t>& loss_tokens_;
  const PlanOptions& options_;
  const int rank_;
};

void check_part(const Lengths& lengths, const PlanOptions& options, const RankPart& part) {
  if (part.rank < 0 || part.rank >= options.ranks) {
    fail_usage("--rank must be below --ranks {}, not {}", options.ranks, part.rank);
  }
  if (options.too_long == TooLong::split) {
    fail_usage("--too-long split cannot be used with --rank: its lines name whole samples");
  }
  if (!part.loss_tokens.empty() && part.loss_tokens.size() != lengths.tokens.size()) {
    fail_usage("--loss-tokens has {} numbers for {} samples", part.loss_tokens.size(), lengths.tokens.size());
  }
}

}  // namespace

void print_rank_part(const Lengths& lengths, const PlanOptions& options, const RankPart& part,
                     const std::function<void(std::string_view)>& print) {
  check_part(lengths, options, part);
  use_background_cpus();
  const LengthsInMemory source(lengths.tokens, lengths.fingerprint);
  const auto planner = make_planner(source, options, part.from);
  const auto plan_block = [&planner] {
    std::optional<PlannedBlock> block(std::in_place);
    if (!planner->next_block(*block)) block.reset();
    return block;
  };
  const nlohmann::ordered_json header = {{"version", kVersion},
                                         {"samples", lengths.tokens.size()},
                                         {"ranks", options.ranks},
                                         {"rank", part.rank},
                                         {"seed", options.seed},
                                         {"epoch", options.epoch},
                                         {"step_tokens", step_budget(options)},
                                         {"step_stretch", step_stretch(options)},
                                         {"fingerprint", lengths.fingerprint}};
  print(header.dump() + '\n');
  const StepLines line_of(lengths, options, part);
  for (auto block = plan_block(); block;) {
    auto next = std::async(std::launch::async, plan_block);
    for (std::size_t step = 0; step < block->plan.steps(); ++step) print(line_of(*block, step));
    block = next.get();
  }
}

}  // namespace lockstep::data
