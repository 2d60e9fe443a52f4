// lockstep-plan: make, check and describe plans.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/tool.h"
#include "common/units.h"
#include "runtime/data/lengths.h"
#include "runtime/data/plan/mixture/mixture.h"
#include "runtime/data/plan/mixture/mixture_file.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/tool/plan_check.h"
#include "runtime/data/plan/tool/plan_file.h"
#include "runtime/data/plan/tool/plan_stats.h"

namespace lockstep::data {
namespace {

// Where the lengths come from, as the three verbs take it.
struct Source {
  std::string lengths;
  std::string column = "length";
  std::string histogram;
  std::size_t samples = 0;
  std::vector<std::filesystem::path> packs;
  std::string mixture;

  void add_to(CLI::App& verb) {
    verb.add_option("--lengths", lengths, "CSV file with one sample a row")->type_name("FILE.csv");
    verb.add_option("--column", column, "The column that holds the length in tokens")->capture_default_str();
    verb.add_option("--histogram", histogram, "CSV file with the columns length and count")
        ->type_name("FILE.csv");
    verb.add_option("--samples", samples, "How many samples to spread over the histogram")
        ->check(CLI::PositiveNumber)
        ->type_name("N");
    verb.add_option("--mixture", mixture,
                    "Several data sets with weights, each with its source of lengths, and a number of steps")
        ->type_name("FILE.json");
  }

  // For messages that name a sample.
  std::string name() const {
    if (!lengths.empty()) return lengths;
    if (!histogram.empty()) return histogram;
    if (!mixture.empty()) return mixture;
    return packs.size() == 1 ? packs.front().string() : fmt::format("{} packs", packs.size());
  }

  // Where it is a mixture, also that.
  Lengths read(std::optional<Mixture>* mixed = nullptr) const {
    const int given = (lengths.empty() ? 0 : 1) + (histogram.empty() ? 0 : 1) + (packs.empty() ? 0 : 1) +
                      (mixture.empty() ? 0 : 1);
    if (given != 1)
      fail_usage(
          "name one source of lengths: --lengths FILE, --histogram FILE, --mixture FILE, or packed files");
    if (!mixture.empty()) {
      MixtureData data = read_mixture(mixture);
      if (mixed != nullptr) *mixed = std::move(data.mixture);
      return std::move(data.lengths);
    }
    if (!lengths.empty()) return lengths_from_csv(lengths, column);
    if (!packs.empty()) return lengths_from_packs(packs);
    if (samples == 0) fail_usage("--histogram needs --samples N");
    return lengths_from_histogram(histogram, samples);
  }
};

Cost parse_cost(const std::string& text) {
  Cost cost;
  const char* const end = text.data() + text.size();
  const auto a = std::from_chars(text.data(), end, cost.a);
  if (a.ec == std::errc() && a.ptr != end && *a.ptr == ',') {
    const auto b = std::from_chars(a.ptr + 1, end, cost.b);
    if (b.ec == std::errc() && b.ptr == end) return cost;
  }
  fail_usage("--cost '{}' is not two numbers a,b as in 24576,1", text);
}

void print_stats(const PlanStats& stats, const PlanOptions& options) {
  fmt::print(
      "steps              {} ({} if all were full), {} ranks, {:.2f} micro-batches each of at most {} "
      "tokens\n",
      stats.steps, stats.minimum_steps, options.ranks, stats.micro_batches, options.cap);
  fmt::print("tokens of a step   {:.3f} of the budget of {}, at most {:.3f}\n", stats.step_tokens_mean,
             step_budget(options), stats.step_tokens_max);
  fmt::print("dropped            {}\n", stats.dropped);
  fmt::print("duplicated         {}\n", stats.duplicated);
  fmt::print("fill               {:.2f} %\n", 100 * stats.fill);
  fmt::print("padding            {:.2f} %\n", 100 * stats.padding);
  fmt::print("imbalance, tokens  {:.5f}\n", stats.imbalance_tokens);
  fmt::print("imbalance, cost    {:.5f} (at least {:.5f})\n", stats.imbalance_cost, stats.lower_bound_cost);
  fmt::print("step-mean ratio    {:.3f} (1 is random)\n", stats.step_mean_ratio);
  fmt::print("lag 1              {:.3f}\n", stats.lag1);
}

// A plan is possible with fewer samples than ranks, but hardly what was wanted.
void say_if_too_few(const Tool& tool, const Plan& plan, const Source& source) {
  const PlanOptions& options = plan.options();
  const auto ranks = static_cast<std::size_t>(options.ranks);
  if (plan.samples() == 0 || plan.samples() >= ranks || plan.mixture() != nullptr) return;
  const std::string what = options.tail == Tail::drop ? "--tail drop leaves out all of them"
                           : options.tail == Tail::repeat
                               ? "--tail repeat uses some of them again"
                               : fmt::format("{} ranks have none", ranks - plan.samples());
  tool.say(
      fmt::format("{}: {} samples are fewer than {} ranks: {}", source.name(), plan.samples(), ranks, what));
}

// Of the data, whatever of them a mixture uses.
OverLong over_long_of(const std::vector<std::uint32_t>& lengths, const PlanOptions& options) {
  OverLong over_long;
  for (SampleId id = 0; id < lengths.size(); ++id) {
    if (lengths[id] <= options.cap) continue;
    const std::uint64_t lost = options.too_long == TooLong::skip       ? lengths[id]
                               : options.too_long == TooLong::truncate ? lengths[id] - options.cap
                                                                       : 0;
    over_long.add({.samples = 1, .tokens = lost, .first = id});
  }
  return over_long;
}

Plan plan_of(const Lengths& lengths, const std::optional<Mixture>& mixture, const PlanOptions& options,
             const Source& source, OverLong& over_long) {
  try {
    if (mixture) {
      over_long = over_long_of(lengths.tokens, options);
      return make_mixture_plan(lengths.tokens, options, *mixture, lengths.fingerprint);
    }
    return make_plan(lengths.tokens, options, lengths.fingerprint, &over_long);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    fail("{}: {}", source.name(), error.what());
  }
}

void make(const Tool& tool, const Source& source, PlanOptions options, const std::string& cost,
          const std::string& out) {
  options.cost = parse_cost(cost);
  std::optional<Mixture> mixture;
  const Lengths lengths = source.read(&mixture);
  if (mixture && options.epoch != 0) fail_usage("--epoch: a mixture has none, its data sets count their own");
  if (mixture && options.tail != Tail::fill) fail_usage("--tail: all steps of a mixture are full");
  const std::uint64_t begin = monotonic_ns();
  OverLong over_long;
  const Plan plan = plan_of(lengths, mixture, options, source, over_long);
  const double seconds = seconds_between(begin, monotonic_ns());
  if (!out.empty()) write_plan(plan, out);
  const PlanStats stats = stats_of(plan, lengths.tokens);
  say_if_too_few(tool, plan, source);
  if (tool.json()) {
    nlohmann::json json = stats;
    json["seconds"] = seconds;
    if (mixture) json["left"] = plan.mixture()->left.size();
    if (options.too_long != TooLong::refuse) {
      json["over_long"] = {{"samples", over_long.samples}, {"tokens_lost", over_long.tokens}};
    }
    Tool::print(json);
  } else {
    print_stats(stats, options);
    if (mixture) fmt::print("pieces not used    {}\n", plan.mixture()->left.size());
    if (over_long.samples > 0) {
      fmt::print("over the cap       {} samples, {} tokens left out; the first is sample {}\n",
                 over_long.samples, over_long.tokens, over_long.first);
    }
    fmt::print("planned in         {}\n", format_seconds(seconds));
  }
}

void expect_plan_of(const Plan& plan, const Mixture& mixture) {
  if (plan.mixture() == nullptr) fail("the plan is of an epoch, not of a mixture");
  const Mixture& planned = plan.mixture()->mixture;
  if (fingerprint_of(planned) != fingerprint_of(mixture) || planned.steps != mixture.steps) {
    fail("the plan is of another mixture: {} steps of {}, not {} of {}", planned.steps,
         fingerprint_of(planned), mixture.steps, fingerprint_of(mixture));
  }
}

// What the caller knows of the plan; nothing where it is not given.
struct Expected {
  std::optional<std::uint64_t> cap;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> epoch;
};

void expect_header(const PlanOptions& header, const Expected& expected) {
  const auto compare = [](const char* name, std::uint64_t is, const std::optional<std::uint64_t>& wanted) {
    if (wanted && is != *wanted) fail("the plan has {} {}, not {}", name, is, *wanted);
  };
  compare("cap", header.cap, expected.cap);
  compare("seed", header.seed, expected.seed);
  compare("epoch", header.epoch, expected.epoch);
}

void check(const Tool& tool, const Source& source, const std::string& file, const Expected& expected) {
  const Plan plan = read_plan(file);
  CheckedPlan checked;
  double imbalance_cost = 1;
  try {
    expect_header(plan.options(), expected);
    std::optional<Mixture> mixture;
    const Lengths lengths = source.read(&mixture);
    checked = check_plan(plan, lengths);
    if (mixture) expect_plan_of(plan, *mixture);
    imbalance_cost = stats_of(plan, lengths.tokens).imbalance_cost;
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    fail("{}: {}", file, error.what());
  }
  if (tool.json()) {
    nlohmann::json json = {{"ok", true},
                           {"samples", plan.samples()},
                           {"steps", plan.steps()},
                           {"dropped", checked.dropped},
                           {"imbalance_cost", imbalance_cost}};
    if (plan.mixture() != nullptr) json["left"] = plan.mixture()->left.size();
    Tool::print(json);
  } else if (plan.mixture() != nullptr) {
    fmt::print(
        "{}: {} data sets, every sample once in each epoch but for {} pieces not used, in {} steps, none "
        "over the cap, cost imbalance {:.5f}\n",
        file, plan.mixture()->mixture.parts.size(), plan.mixture()->left.size(), plan.steps(),
        imbalance_cost);
  } else {
    fmt::print(
        "{}: {} samples, {} left out as planned ({} over the cap, {} with the last step), in {} steps, none "
        "over the cap, cost imbalance {:.5f}\n",
        file, plan.samples(), checked.dropped, checked.skipped, checked.dropped - checked.skipped,
        plan.steps(), imbalance_cost);
  }
}

void describe_lengths(const Tool& tool, std::vector<std::uint32_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  double tokens = 0;
  for (const std::uint32_t length : lengths) tokens += length;
  const auto at = [&](double share) {
    return lengths.empty()
               ? 0U
               : lengths[static_cast<std::size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  const double mean = lengths.empty() ? 0 : tokens / static_cast<double>(lengths.size());
  if (tool.json()) {
    Tool::print({{"samples", lengths.size()},
                 {"tokens", tokens},
                 {"mean", mean},
                 {"shortest", at(0)},
                 {"median", at(0.5)},
                 {"p90", at(0.9)},
                 {"p99", at(0.99)},
                 {"longest", at(1)}});
  } else {
    fmt::print(
        "samples   {}\ntokens    {}\nmean      {:.1f}\nshortest  {}\nmedian    {}\np90       {}\np99       "
        "{}\n"
        "longest   {}\n",
        lengths.size(), format_count(tokens), mean, at(0), at(0.5), at(0.9), at(0.99), at(1));
  }
}

void stats(const Tool& tool, const Source& source, const std::string& file) {
  const Lengths lengths = source.read();
  if (file.empty()) return describe_lengths(tool, lengths.tokens);
  const Plan plan = read_plan(file);
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (const SampleId id : plan.step_samples(step)) {
      if (sample_of(id) >= lengths.tokens.size())
        fail("{}: step {}: there is no sample {}", file, step, sample_of(id));
    }
  }
  const PlanStats stats = stats_of(plan, lengths.tokens);
  tool.json() ? Tool::print(stats) : print_stats(stats, plan.options());
}

int run(int argc, char** argv) {
  Tool tool("lockstep-plan", "Plans token-balanced batches: every sample once, equal work on every rank.");
  Source source;
  PlanOptions options;
  std::string cost = "1,0";
  std::string too_long = "refuse";
  std::string tail = "fill";
  std::string file;
  std::string out;
  Expected expected;

  CLI::App& make_verb = tool.verb("make", "Plan an epoch.", [&] {
    options.too_long = too_long_of(too_long, "--too-long");
    options.tail = tail_of(tail, "--tail");
    make(tool, source, options, cost, out);
  });
  source.add_to(make_verb);
  make_verb.add_option("packed", source.packs, "Packed token files")->type_name("PACKED");
  make_verb.add_option("--ranks", options.ranks, "Ranks that train together")
      ->check(CLI::PositiveNumber)
      ->required();
  make_verb.add_option("--cap", options.cap, "Tokens that a micro-batch may hold")
      ->check(CLI::PositiveNumber)
      ->required();
  make_verb.add_option("--accumulate", options.accumulate, "Micro-batches of a rank per step, about")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  make_verb.add_option("--cost", cost, "What a sample of L tokens costs: a*L + b*L*L")
      ->type_name("a,b")
      ->capture_default_str();
  make_verb.add_option("--seed", options.seed, "Of the shuffling")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  make_verb.add_option("--epoch", options.epoch, "Another epoch, another order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  make_verb
      .add_option("--step-tokens", options.step_tokens,
                  "Tokens of a step, all ranks together (default: 0.95 x ranks x accumulate x cap)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  make_verb
      .add_option(
          "--stretch", options.step_stretch,
          "A step in which one sample outweighs a rank's share may take this many times its tokens; 1: never")
      ->capture_default_str()
      ->type_name("X");
  make_verb.add_flag(
      "--equal-micro-batches", options.equal_micro_batches,
      "Equally many micro-batches on all ranks, some empty: for models that communicate in forward");
  make_verb
      .add_option_function<std::string>(
          "--randomness",
          [](const std::string&) {
            fail_usage(
                "--randomness is gone: steps are random draws now; use --stretch X to let steps with "
                "outliers grow");
          },
          "")
      ->group("");
  make_verb.add_flag("--padded", options.padded, "The cap holds for rows x longest");
  make_verb
      .add_option("--pad-multiple", options.pad_multiple, "Padded rows are rounded up to a multiple of this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  make_verb.add_option("--speeds", options.speeds, "The ranks' relative speeds, one for each")
      ->delimiter(',');
  make_verb
      .add_option("--too-long", too_long,
                  "What becomes of samples longer than the cap: refuse, truncate, skip, split")
      ->capture_default_str();
  make_verb
      .add_option("--tail", tail,
                  "A last step of fewer samples than ranks: fill (ranks without any), drop, repeat (samples)")
      ->capture_default_str();
  make_verb.add_option("--out", out, "Where to write the plan")->type_name("PLAN.jsonl");

  CLI::App& check_verb =
      tool.verb("check", "Check a plan file against the data.", [&] { check(tool, source, file, expected); });
  check_verb.add_option("plan", file, "The plan")->required()->type_name("PLAN.jsonl");
  check_verb.add_option("packed", source.packs, "Packed token files")->type_name("PACKED");
  check_verb.add_option("--cap", expected.cap, "The cap that the plan must have");
  check_verb.add_option("--seed", expected.seed, "The seed that it must have");
  check_verb.add_option("--epoch", expected.epoch, "The epoch that it must be of");
  source.add_to(check_verb);

  CLI::App& stats_verb =
      tool.verb("stats", "Describe lengths, or a plan and how well it balances them.", [&] {
        if (!source.packs.empty() && source.packs.front().extension() == ".jsonl") {
          file = source.packs.front().string();
          source.packs.erase(source.packs.begin());
        }
        stats(tool, source, file);
      });
  stats_verb.add_option("files", source.packs, "A plan (PLAN.jsonl), packed token files, or both")
      ->type_name("FILE");
  source.add_to(stats_verb);
  return tool.run(argc, argv);
}

}  // namespace
}  // namespace lockstep::data

int main(int argc, char** argv) {
  return lockstep::data::run(argc, argv);
}
