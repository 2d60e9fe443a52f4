// lockstep-plan makes plans and describes lengths.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/text.h"
#include "common/tool.h"
#include "common/units.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/plan/suggest.h"
#include "runtime/data/plan/tool/plan_file.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "runtime/data/plan/tool/rank_part.h"

namespace lockstep::data {
namespace {

// The options that say where the lengths come from; all verbs have them.
struct LengthOptions {
  std::string csv;
  std::string numbers;
  std::string column = "length";
  std::string histogram;
  std::size_t samples = 0;
  std::vector<std::filesystem::path> packs;
  std::string mixture;

  void add_to(CLI::App& verb) {
    verb.add_option("--lengths", csv, "CSV file with one row per sample")->type_name("FILE.csv");
    verb.add_option("--lengths-u32", numbers, "File of 32-bit little-endian lengths, one per sample")
        ->type_name("FILE");
    verb.add_option("--column", column, "Column that holds the length in tokens")->capture_default_str();
    verb.add_option("--histogram", histogram, "CSV file with the columns length and count")
        ->type_name("FILE.csv");
    verb.add_option("--samples", samples, "Number of samples to make from the histogram")
        ->check(CLI::PositiveNumber)
        ->type_name("N");
    verb.add_option("--mixture", mixture, "JSON file with data sets, their weights and a number of steps")
        ->type_name("FILE.json");
  }

  // For messages about a sample.
  std::string name() const {
    if (!csv.empty()) return csv;
    if (!numbers.empty()) return numbers;
    if (!histogram.empty()) return histogram;
    if (!mixture.empty()) return mixture;
    return packs.size() == 1 ? packs.front().string() : fmt::format("{} packs", packs.size());
  }

  // Without --mixture the mixture has no parts.
  MixtureData read() const {
    const int sources = int{!csv.empty()} + int{!numbers.empty()} + int{!histogram.empty()} +
                        int{!packs.empty()} + int{!mixture.empty()};
    if (sources != 1) {
      fail_usage(
          "name exactly one source of lengths: --lengths FILE, --lengths-u32 FILE, --histogram FILE, --mixture FILE, or packed files");
    }
    if (!mixture.empty()) return read_mixture(mixture);
    if (!csv.empty()) return {{}, lengths_from_csv(csv, column)};
    if (!numbers.empty()) return {{}, lengths_from_u32(numbers)};
    if (!packs.empty()) return {{}, lengths_from_packs(packs)};
    if (samples == 0) fail_usage("--histogram needs --samples N");
    return {{}, lengths_from_histogram(histogram, samples)};
  }
};

// Calls work(). Puts the name of the file in front of its errors, but not of errors in the call.
template <typename Work>
auto naming(const std::string& file, const Work& work) {
  try {
    return work();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    fail("{}: {}", file, error.what());
  }
}

Cost parse_cost(const std::string& text) {
  const auto parts = split(text, ',');
  const auto a = to_number<double>(parts.front());
  const auto b = to_number<double>(parts.back());
  if (parts.size() == 2 && a && b) return {.a = *a, .b = *b};
  fail_usage("--cost must be two numbers a,b such as 24576,1, not '{}'", text);
}

void print_stats(const PlanStats& stats, const PlanOptions& options) {
  fmt::print(
      R"(steps              {} ({} if all were full), {} ranks, {:.2f} micro-batches each of at most {} tokens
tokens of a step   {:.3f} of the budget of {}, at most {:.3f}
dropped            {}
duplicated         {}
fill               {:.2f} %
padding            {:.2f} %
imbalance, tokens  {:.5f}
imbalance, cost    {:.5f} (at least {:.5f})
step-mean ratio    {:.3f} (1 is random)
lag 1              {:.3f}
)",
      stats.steps, stats.minimum_steps, options.ranks, stats.micro_batches, options.cap,
      stats.step_tokens_mean, step_budget(options), stats.step_tokens_max, stats.dropped, stats.duplicated,
      100 * stats.fill, 100 * stats.padding, stats.imbalance_tokens, stats.imbalance_cost,
      stats.lower_bound_cost, stats.step_mean_ratio, stats.lag1);
}

// Fewer samples than ranks can be planned, but are probably a mistake.
void warn_if_too_few(const Tool& tool, const Plan& plan, const std::string& source) {
  const PlanOptions& options = plan.options();
  const auto ranks = static_cast<std::size_t>(options.ranks);
  if (plan.samples() == 0 || plan.samples() >= ranks || plan.mixture() != nullptr) return;
  const std::string result = options.tail == Tail::drop ? "--tail drop leaves out all samples"
                             : options.tail == Tail::repeat
                                 ? "--tail repeat uses some samples again"
                                 : fmt::format("{} ranks have none", ranks - plan.samples());
  tool.say(fmt::format("{}: {} samples for {} ranks: {}", source, plan.samples(), ranks, result));
}

struct OverLong {
  std::uint64_t samples = 0;
  std::uint64_t tokens_lost = 0;
  SampleId first = 0;
};

// The samples of the data that are longer than the cap, whether or not a mixture uses them.
OverLong over_long_of(const std::vector<std::uint32_t>& lengths, const PlanOptions& options) {
  OverLong over_long;
  for (SampleId id = 0; id < lengths.size(); ++id) {
    if (lengths[id] <= options.cap) continue;
    if (over_long.samples++ == 0) over_long.first = id;
    if (options.too_long == TooLong::skip) over_long.tokens_lost += lengths[id];
    if (options.too_long == TooLong::truncate) over_long.tokens_lost += lengths[id] - options.cap;
  }
  return over_long;
}

void make(const Tool& tool, const LengthOptions& source, const PlanOptions& options, const std::string& out) {
  const MixtureData data = source.read();
  const std::vector<std::uint32_t>& lengths = data.lengths.tokens;
  const bool mixture = !data.mixture.parts.empty();
  if (mixture && options.epoch != 0) {
    fail_usage("--epoch cannot be used with a mixture: its data sets count their own epochs");
  }
  if (mixture && options.tail != Tail::fill) {
    fail_usage("--tail cannot be used with a mixture: all its steps are full");
  }
  const std::uint64_t begin = monotonic_ns();
  const Plan plan = naming(source.name(), [&] {
    return mixture ? make_mixture_plan(lengths, options, data.mixture, data.lengths.fingerprint)
                   : make_plan(lengths, options, data.lengths.fingerprint);
  });
  const double seconds = seconds_between(begin, monotonic_ns());
  if (!out.empty()) write_plan(plan, out);
  const PlanStats stats = stats_of(plan, lengths);
  const OverLong over_long = over_long_of(lengths, options);
  warn_if_too_few(tool, plan, source.name());
  if (tool.json()) {
    nlohmann::json json = stats;
    json["seconds"] = seconds;
    json["empty"] = count_empty(lengths);
    if (mixture) json["left"] = plan.mixture()->left.size();
    if (options.too_long != TooLong::refuse) {
      json["over_long"] = {{"samples", over_long.samples}, {"tokens_lost", over_long.tokens_lost}};
    }
    return Tool::print(json);
  }
  print_stats(stats, options);
  if (mixture) fmt::print("pieces not used    {}\n", plan.mixture()->left.size());
  if (const std::size_t empty = count_empty(lengths); empty > 0)
    fmt::print("empty              {} samples without a token are left out\n", empty);
  if (over_long.samples > 0) {
    fmt::print("over the cap       {} samples, {} tokens left out; the first is sample {}\n",
               over_long.samples, over_long.tokens_lost, over_long.first);
  }
  fmt::print("planned in         {}\n", format_seconds(seconds));
}

// The options of make that print one rank's part.
struct PartOptions {
  std::optional<int> rank;
  std::string from;
  std::string loss_tokens;

  void add_to(CLI::App& verb) {
    CLI::Option& only = *verb.add_option("--rank", rank, "Print only this rank's part, a line per step");
    verb.add_option("--from", from, "Continue after a step: the \"state\" of its line")->needs(&only);
    verb.add_option("--loss-tokens", loss_tokens,
                    "File of 32-bit little-endian numbers: each sample's tokens that count in the loss")
        ->needs(&only)
        ->type_name("FILE");
  }
};

void make_part(const LengthOptions& source, const PlanOptions& options, const PartOptions& part) {
  const MixtureData data = source.read();
  if (!data.mixture.parts.empty()) fail_usage("--rank cannot be used with a mixture");
  RankPart what{.rank = *part.rank, .from = part.from};
  if (!part.loss_tokens.empty()) what.loss_tokens = numbers_from_u32(part.loss_tokens);
  naming(source.name(), [&] {
    print_rank_part(data.lengths, options, what, [](std::string_view lines) {
      if (std::fwrite(lines.data(), 1, lines.size(), stdout) != lines.size() || std::fflush(stdout) != 0) {
        fail_errno("cannot write the plan to standard output");
      }
    });
  });
}

void stats(const Tool& tool, const LengthOptions& source) {
  std::vector<std::uint32_t> lengths = source.read().lengths.tokens;
  const std::size_t empty = count_empty(lengths);
  std::erase(lengths, 0U);
  std::sort(lengths.begin(), lengths.end());
  double tokens = 0;
  for (const std::uint32_t length : lengths) tokens += length;
  const auto at = [&](double share) {
    return lengths.empty()
               ? 0U
               : lengths[static_cast<std::size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  const double mean = lengths.empty() ? 0 : tokens / static_cast<double>(lengths.size());
  nlohmann::json json = {{"samples", lengths.size()}, {"tokens", tokens}, {"mean", mean}, {"empty", empty}};
  if (!tool.json()) {
    fmt::print("samples   {}\ntokens    {}\nmean      {:.1f}\n", lengths.size(), format_count(tokens), mean);
  }
  for (const auto& [name, share] :
       {std::pair("shortest", 0.0), {"median", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"longest", 1.0}}) {
    json[name] = at(share);
    if (!tool.json()) fmt::print("{:<9} {}\n", name, at(share));
  }
  if (tool.json()) return Tool::print(json);
  if (empty > 0) fmt::print("empty     {} more, which plans leave out\n", empty);
}

// The limit of a micro-batch: its tokens, or the memory that they need.
struct Limit {
  std::uint64_t cap = 0;
  std::string memory;
  std::string token_memory;

  void add_to(CLI::App& verb) {
    CLI::Option& tokens =
        *verb.add_option("--cap", cap, "Maximum tokens of a micro-batch")->check(CLI::PositiveNumber);
    CLI::Option& bytes =
        *verb.add_option("--memory", memory, "Instead of --cap: memory for a micro-batch, such as 12G")
             ->type_name("BYTES");
    CLI::Option& each =
        *verb.add_option("--token-memory", token_memory, "Memory for each of its tokens, such as 300K")
             ->type_name("BYTES");
    bytes.excludes(&tokens)->needs(&each);
    each.needs(&bytes);
  }

  std::uint64_t tokens() const {
    if (memory.empty() && cap == 0) fail_usage("give --cap N, or --memory and --token-memory");
    if (memory.empty()) return cap;
    const std::uint64_t each = parse_bytes(token_memory);
    const std::uint64_t fit = each == 0 ? 0 : parse_bytes(memory) / each;
    if (fit == 0) fail_usage("--memory {} does not hold a token of --token-memory {}", memory, token_memory);
    return fit;
  }
};

void print_suggestion(const Suggestion& suggestion, const PlanOptions& options) {
  fmt::print("  accumulate  step_tokens  imbalance    steps   ({} ranks, cap {})\n", options.ranks,
             options.cap);
  for (std::size_t i = 0; i < suggestion.rows.size(); ++i) {
    const StepSize& row = suggestion.rows[i];
    fmt::print("{} {:>10} {:>12} {:>8.1f} % {:>8}\n", i == suggestion.recommended ? '*' : ' ', row.accumulate,
               row.step_tokens, 100 * (row.imbalance_cost - 1), row.steps);
  }
  const StepSize& best = suggestion.best();
  fmt::print("recommended: plan.accumulate = {}, plan.step_tokens = {}\n", best.accumulate, best.step_tokens);
}

void suggest_verb(const Tool& tool, const LengthOptions& source, PlanOptions options, const Limit& limit) {
  options.cap = limit.tokens();
  const Lengths lengths = source.read().lengths;
  const Suggestion suggestion = naming(source.name(), [&] { return suggest(lengths.tokens, options); });
  if (!tool.json()) return print_suggestion(suggestion, options);
  nlohmann::json json = suggestion;
  if (!limit.memory.empty()) json["cap"] = options.cap;
  Tool::print(json);
}

void add_shape_options(CLI::App& verb, PlanOptions& options) {
  const auto add = [&](const char* name, auto& value, const CLI::Validator& range, const char* help) {
    return verb.add_option(name, value, help)->check(range);
  };
  add("--ranks", options.ranks, CLI::PositiveNumber, "Number of ranks")->required();
  add("--seed", options.seed, CLI::NonNegativeNumber, "Seed of the order")->capture_default_str();
  add("--epoch", options.epoch, CLI::NonNegativeNumber, "Number of the epoch; each has another order")
      ->capture_default_str();
  add("--pad-multiple", options.pad_multiple, CLI::PositiveNumber,
      "Round the length of padded rows up to a multiple")
      ->capture_default_str();
  verb.add_option(
          "--stretch", options.step_stretch,
          "Maximum tokens of a step with outliers, as a multiple of its tokens; 1: steps never grow (default: 1.5; 1 with --step-tokens)")
      ->type_name("X");
  verb.add_flag(
      "--equal-micro-batches", options.equal_micro_batches,
      "Equally many micro-batches on all ranks, some empty: for models that communicate in forward");
  verb.add_flag("--padded", options.padded, "A micro-batch takes rows x longest sample");
  verb.add_option("--speeds", options.speeds, "Relative speed of each rank")->delimiter(',');
}

void add_make_options(CLI::App& verb, PlanOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return verb.add_option(name, value, help)->check(CLI::PositiveNumber);
  };
  add("--cap", options.cap, "Maximum tokens of a micro-batch")->required();
  add("--accumulate", options.accumulate, "Approximate micro-batches of a rank per step")
      ->capture_default_str();
  add("--step-tokens", options.step_tokens,
      "Tokens of a step, all ranks together (default: 0.95 x ranks x accumulate x cap)")
      ->type_name("N");
}

int run(int argc, char** argv) {
  Tool tool("lockstep-plan", "Plans token-balanced batches: every sample once, equal work on every rank.");
  LengthOptions source;
  PlanOptions options;
  std::string cost = "1,0";
  std::string too_long = "refuse";
  std::string tail = "fill";
  std::string out;
  PartOptions part;

  CLI::App& make_verb = tool.verb("make", "Plan an epoch or a mixture.", [&] {
    options.too_long = too_long_of(too_long, "--too-long");
    options.tail = tail_of(tail, "--tail");
    options.cost = parse_cost(cost);
    if (part.rank && !out.empty()) fail_usage("--rank prints to standard output: leave out --out");
    if (part.rank) return make_part(source, options, part);
    make(tool, source, options, out);
  });
  const auto add_planning = [&](CLI::App& verb) {
    source.add_to(verb);
    verb.add_option("packed", source.packs, "Packed token files")->type_name("PACKED");
    add_shape_options(verb, options);
    verb.add_option("--cost", cost, "Cost of a sample of L tokens: a*L + b*L*L")
        ->type_name("a,b")
        ->capture_default_str();
    verb.add_option("--too-long", too_long, "For samples longer than the cap: refuse, truncate, skip, split")
        ->capture_default_str();
  };
  add_planning(make_verb);
  add_make_options(make_verb, options);
  part.add_to(make_verb);
  make_verb
      .add_option("--tail", tail,
                  "For a last step of fewer samples than ranks: fill (some ranks have none), drop, repeat")
      ->capture_default_str();
  make_verb.add_option("--out", out, "File to write the plan to")
      ->type_name("PLAN.jsonl")
      ->check(Tool::named());

  Limit limit;
  CLI::App& suggest_app =
      tool.verb("suggest", "Compare sizes of steps, and recommend one whose work the ranks can share.", [&] {
        if (!source.mixture.empty()) fail_usage("--mixture cannot be used here: name one data set");
        options.too_long = too_long_of(too_long, "--too-long");
        options.cost = parse_cost(cost);
        suggest_verb(tool, source, options, limit);
      });
  add_planning(suggest_app);
  limit.add_to(suggest_app);

  CLI::App& stats_verb = tool.verb("stats", "Describe lengths.", [&] { stats(tool, source); });
  stats_verb.add_option("packed", source.packs, "Packed token files")->type_name("PACKED");
  source.add_to(stats_verb);
  return tool.run(argc, argv);
}

}  // namespace
}  // namespace lockstep::data

int main(int argc, char** argv) {
  return lockstep::data::run(argc, argv);
}
