// Measures how equally the ranks of a step work: not by the planner's cost, but by the processor time of forward and
// backward of the text example's model. One process runs the parts of a step one rank after the other, with one thread,
// so that neither waiting, nor communication, nor other ranks on the same cores count: what is compared is only the work
// that the plan gave to each rank. Each part runs several times, and its shortest time counts.
//
// Each line {"bench":"balance","implementation",...} has the mean over steps of the slowest rank's work ÷ the mean rank's:
// by the plan's cost (imbalance_model) and on the clock (imbalance_cpu_time). `floor` is the same if all ranks have the
// same batch: what remains is the clock's own noise. `a_fitted` is the a of a*L + b*L*L with b = 1 that the measured times
// fit best; `imbalance_fitted` is the imbalance by that cost.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "examples/text_lm/model.h"
#include "runtime/comm/process_settings.h"
#include "runtime/data/plan/planner.h"
#include "tests/bench/length_lists.h"
#include "tests/bench/planner_peers.h"

namespace lockstep::bench {
namespace {

using data::Batch;
using data::MicroBatchShape;
using data::Plan;
using data::PlanOptions;
using text_lm::LanguageModel;

struct Settings {
  std::vector<std::int64_t> widths = {128, 512};
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> lengths = {"azure_conv", "heavy_tail"};
  std::vector<std::string> forms = {"packed", "padded"};
  std::vector<std::string> implementations = {"lockstep", "fairseq", "random"};
  std::string cost = "model";
  std::uint64_t cap = 4096;
  int steps = 8;
  int runs = 3;
  bool quick = false;
};

constexpr std::int64_t kHeadWidth = 64;

text_lm::ModelOptions model_options(std::int64_t width, bool quick) {
  return {.vocabulary = quick ? 256 : text_lm::ModelOptions{}.vocabulary,
          .width = width,
          .heads = std::max<std::int64_t>(1, width / kHeadWidth)};
}

/// The plan's cost: that of the model's sizes, 6 x width, or numbers "a,b".
data::Cost cost_of(const std::string& choice, const text_lm::ModelOptions& model) {
  if (choice == "width") return {.a = 6.0 * static_cast<double>(model.width), .b = 1};
  if (choice == "model") {
    return data::transformer_cost(
        {.width = model.width, .layers = model.layers, .vocabulary = model.vocabulary});
  }
  data::Cost cost;
  if (std::sscanf(choice.c_str(), "%lf,%lf", &cost.a, &cost.b) != 2)
    fail_usage("--cost must be model, width, or two numbers a,b, not '{}'", choice);
  return cost;
}

/// The work of a rank in a step.
struct Part {
  std::vector<Batch> batches;
  double tokens = 0;   // with padding
  double squares = 0;  // of their samples' lengths
  double cost = 0;     // by the plan
  double seconds = 0;  // the shortest so far; 0: not measured
};

torch::Tensor positions_of(std::span<const std::int64_t> lengths) {
  std::vector<torch::Tensor> ranges;
  for (const std::int64_t length : lengths) ranges.push_back(torch::arange(length));
  return torch::cat(ranges);
}

Batch make_batch(std::span<const data::SampleId> samples, std::span<const std::uint32_t> lengths,
                 const MicroBatchShape& shape, bool padded, std::int64_t vocabulary) {
  std::vector<std::int64_t> rows;  // the tokens of each
  for (const data::SampleId id : samples)
    rows.push_back(padded ? shape.longest : lengths[data::sample_of(id)]);
  Batch batch;
  batch.tokens = torch::randint(vocabulary, {shape.tokens});
  batch.positions = positions_of(rows);
  batch.loss_mask = batch.positions > 0;
  if (padded) {
    const std::vector<std::int64_t> sizes = {shape.samples, shape.longest};
    batch.tokens = batch.tokens.view(sizes);
    batch.positions = batch.positions.view(sizes);
    std::vector<std::int64_t> real;
    for (const data::SampleId id : samples) real.push_back(lengths[data::sample_of(id)]);
    batch.loss_mask =
        batch.loss_mask.view(sizes).logical_and(batch.positions < torch::tensor(real).unsqueeze(1));
    return batch;
  }
  std::vector<std::int64_t> ends = {0};
  for (const std::int64_t row : rows) ends.push_back(ends.back() + row);
  batch.cu_seqlens = torch::tensor(ends);
  return batch;
}

Part make_part(const Plan& plan, std::span<const std::uint32_t> lengths, std::size_t step, int rank,
               std::int64_t vocabulary) {
  const PlanOptions& options = plan.options();
  Part part;
  for (std::size_t i = 0; i < plan.micro_batches(step, rank); ++i) {
    const auto samples = plan.micro_batch(step, rank, i);
    if (samples.empty()) continue;
    const MicroBatchShape shape = data::shape_of(samples, lengths, options);
    part.batches.push_back(make_batch(samples, lengths, shape, options.padded, vocabulary));
    part.tokens += static_cast<double>(shape.tokens);
    part.squares += static_cast<double>(shape.squares);
    part.cost += data::cost_of(shape, options.cost);
  }
  return part;
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Gradients add up, as under no_sync.
double seconds_of(LanguageModel& model, const Part& part) {
  const double begin = thread_seconds();
  for (const Batch& batch : part.batches) loss_sum(model, batch).backward();
  return thread_seconds() - begin;
}

/// Measures all parts `runs` times, in alternating order, and keeps each one's shortest time.
void measure(LanguageModel& model, std::vector<Part*> parts, int runs) {
  for (int run = 0; run < runs; ++run) {
    for (Part* part : parts) {
      const double seconds = seconds_of(model, *part);
      part->seconds = part->seconds == 0 ? seconds : std::min(part->seconds, seconds);
    }
    std::reverse(parts.begin(), parts.end());
  }
}

template <typename Value>
double max_by_mean(const std::vector<Part>& parts, const Value& value) {
  double max = 0;
  double sum = 0;
  for (const Part& part : parts) {
    max = std::max(max, value(part));
    sum += value(part);
  }
  return sum > 0 ? max * static_cast<double>(parts.size()) / sum : 1;
}

struct Measured {
  std::vector<std::vector<Part>> steps;

  template <typename Value>
  double imbalance(const Value& value) const {
    double sum = 0;
    for (const auto& parts : steps) sum += max_by_mean(parts, value);
    return sum / static_cast<double>(steps.size());
  }
  CostFit fit() const {
    std::vector<MeasuredWork> all;
    for (const auto& parts : steps) {
      for (const Part& part : parts)
        all.push_back({.tokens = part.tokens, .squares = part.squares, .time = part.seconds});
    }
    return fit_cost(all);
  }
};

/// Steps from all over the plan, without the last one, which is not full.
std::vector<std::size_t> chosen_steps(const Plan& plan, int count) {
  const std::size_t full = plan.steps() - 1;
  if (plan.steps() < 2) fail("the plan has {} steps: give more samples or a smaller cap", plan.steps());
  std::vector<std::size_t> steps;
  const auto wanted = std::min(full, static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < wanted; ++i) steps.push_back(i * full / wanted);
  return steps;
}

Measured measure_plan(LanguageModel& model, const Plan& plan, std::span<const std::uint32_t> lengths,
                      const Settings& settings) {
  Measured measured;
  for (const std::size_t step : chosen_steps(plan, settings.steps)) {
    std::vector<Part> parts;
    for (int rank = 0; rank < plan.options().ranks; ++rank)
      parts.push_back(make_part(plan, lengths, step, rank, model->options().vocabulary));
    std::vector<Part*> to_run;
    for (Part& part : parts) to_run.push_back(&part);
    measure(model, to_run, settings.runs);
    for (Part& part : parts) part.batches.clear();
    measured.steps.push_back(std::move(parts));
  }
  return measured;
}

/// Every rank has the batches of rank 0.
double floor_of(LanguageModel& model, const Plan& plan, std::span<const std::uint32_t> lengths,
                const Settings& settings) {
  Measured measured;
  for (const std::size_t step : chosen_steps(plan, settings.steps)) {
    std::vector<Part> parts(static_cast<std::size_t>(plan.options().ranks),
                            make_part(plan, lengths, step, 0, model->options().vocabulary));
    std::vector<Part*> to_run;
    for (Part& part : parts) to_run.push_back(&part);
    measure(model, to_run, settings.runs);
    for (Part& part : parts) part.batches.clear();
    measured.steps.push_back(std::move(parts));
  }
  return measured.imbalance([](const Part& part) { return part.seconds; });
}

Plan plan_of(const std::string& implementation, const List& list, const PlanOptions& options) {
  const auto& lengths = list.lengths;
  if (implementation == "lockstep") return make_plan(lengths.tokens, options, lengths.fingerprint);
  if (implementation == "fairseq") return fairseq(lengths.tokens, options);
  return random_batches(lengths.tokens, options);
}

void run_case(LanguageModel& model, const List& list, const PlanOptions& options, const Settings& settings) {
  const auto& lengths = list.lengths.tokens;
  const double floor =
      floor_of(model, make_plan(lengths, options, list.lengths.fingerprint), lengths, settings);
  for (const std::string& implementation : settings.implementations) {
    const Plan plan = plan_of(implementation, list, options);
    const Measured measured = measure_plan(model, plan, lengths, settings);
    const CostFit fit = measured.fit();
    const auto fitted = [&](const Part& part) {
      return fit.of({.tokens = part.tokens, .squares = part.squares});
    };
    nlohmann::json line = {
        {"bench", "balance"},
        {"implementation", implementation},
        {"width", model->options().width},
        {"ranks", options.ranks},
        {"lengths", list.name},
        {"padded", options.padded},
        {"cap", options.cap},
        {"accumulate", options.accumulate},
        {"cost", {options.cost.a, options.cost.b}},
        {"imbalance_model", measured.imbalance([](const Part& part) { return part.cost; })},
        {"imbalance_cpu_time", measured.imbalance([](const Part& part) { return part.seconds; })},
        {"imbalance_fitted", measured.imbalance(fitted)},
        {"a_fitted", std::isfinite(fit.ratio()) ? nlohmann::json(fit.ratio()) : nlohmann::json(nullptr)},
        {"floor", floor},
        {"steps", measured.steps.size()},
        {"runs", settings.runs}};
    Tool::print(line);
    std::fflush(stdout);  // a case takes minutes
  }
}

void run(Settings settings) {
  if (settings.quick) {
    settings.widths = {32};
    settings.ranks = {2};
    settings.cap = 128;
    settings.steps = 2;
    settings.runs = 1;
  }
  comm::keep_heap();
  comm::set_threads(1);
  // Lengths in proportion to the cap, so that a step has as many samples as with the cap that they were made for.
  const auto shorter = [&](std::uint64_t cap) {
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, cap / settings.cap));
  };
  // Fewer samples than the planner's targets have (design/goals.md) cannot be balanced, whatever the cost.
  struct Case {
    List list;
    int accumulate;
  };
  const std::map<std::string, Case> cases = {
      {"azure_conv", {shortened(azure_conv(), shorter(16'384), settings.cap), 1}},
      {"heavy_tail", {shortened(heavy_tail(), shorter(131'072), settings.cap), 4}}};
  for (const std::int64_t width : settings.widths) {
    torch::manual_seed(1);
    LanguageModel model(model_options(width, settings.quick));
    for (const std::string& name : settings.lengths) {
      const auto& [list, accumulate] = cases.at(name);
      for (const std::string& form : settings.forms) {
        for (const int ranks : settings.ranks) {
          const PlanOptions options{.ranks = ranks,
                                    .cap = settings.cap,
                                    .accumulate = accumulate,
                                    .cost = cost_of(settings.cost, model->options()),
                                    .padded = form == "padded"};
          run_case(model, list, options, settings);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_balance",
                      "Measures on the clock how equally the ranks of a step work, beside other batches.");
  lockstep::bench::Settings settings;
  CLI::App& app = tool.app();
  app.add_option("--widths", settings.widths, "Widths of the model")->delimiter(',');
  app.add_option("--ranks", settings.ranks, "Numbers of ranks")->delimiter(',');
  app.add_option("--lengths", settings.lengths, "Lists of lengths")
      ->delimiter(',')
      ->check(CLI::IsMember({"azure_conv", "heavy_tail"}));
  app.add_option("--forms", settings.forms, "Forms of the batches")
      ->delimiter(',')
      ->check(CLI::IsMember({"packed", "padded"}));
  app.add_option("--implementations", settings.implementations, "Ways to make batches")
      ->delimiter(',')
      ->check(CLI::IsMember({"lockstep", "fairseq", "random"}));
  app.add_option("--cost", settings.cost,
                 "The plan's cost: model (from its sizes), width (6 * width, 1), or a,b")
      ->capture_default_str();
  app.add_option("--cap", settings.cap, "Tokens that a micro-batch may hold")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "Steps to measure")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--runs", settings.runs, "Runs of each step; the shortest counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--quick", settings.quick, "A small model and few steps");
  return tool.run(argc, argv, [&] { lockstep::bench::run(settings); });
}
