#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "common/statistics.h"
#include "common/units.h"
#include "exporters/report/diagnosis.h"
#include "exporters/report/rules.h"

namespace lockstep::report {
namespace {

using record::Counters;
using record::Phase;
using record::Resources;
using record::Snapshot;

// Below these shares of the step a change is not worth the effort, as below kDataWait and kCheckpoint.
constexpr double kCopy = 0.10;
constexpr double kOptimizer = 0.20;
constexpr double kOther = 0.20;
constexpr double kPadding = 0.10;  // of the tokens
constexpr double kSkipped = 0.05;  // of the steps
constexpr double kStaging = 0.20;  // of all steps until now
constexpr double kStagingSeconds = 60;
constexpr double kWithoutCpu = 0.25;         // of the time in which the loader's threads build batches
constexpr double kLoaderCpu = 0.10;          // of the processor time: what its threads take from computing
constexpr double kSmallRead = 16 << 10;      // bytes; a disk or a network takes about as long for more
constexpr double kManyReads = 200;           // per second and rank
constexpr std::uint64_t kReadSteps = 20;     // a shorter run reads little but its own start
constexpr double kReadTwice = 1.5;           // bytes from storage for each byte of a sample
constexpr double kOtherReads = 1ULL << 30U;  // by each rank: LibTorch's libraries, checkpoints
constexpr double kSlower = 1.15;             // than in the past
constexpr double kLongStep = 3;              // times the median step
constexpr double kLongSteps = 0.10;   // at most this share of the steps, at least this share of the time
constexpr std::size_t kMaxNamed = 8;  // ranks

std::uint64_t sum_of(const Run& run, std::uint64_t Counters::*field) {
  std::uint64_t total = 0;
  for (const Snapshot& rank : run.ranks) total += rank.counters.*field;
  return total;
}

// A phase that takes at least this share of the step.
Found long_phase(const Facts& facts, Phase phase, double least, const char* sentence) {
  const double share = share_of(facts.run, phase);
  if (share < least) return {};
  return Finding{.sentence = fmt::format(fmt::runtime(sentence), 100 * share)};
}

bool reads_from_source(const StagingRecord& node) {
  return node.state == StagingState::source || node.state == StagingState::failed;
}

Found staging_failed(const Facts& facts) {
  std::string nodes;
  std::size_t count = 0;
  for (const StagingRecord& node : facts.run.staging) {
    if (!reads_from_source(node)) continue;
    if (++count <= 4) nodes += (nodes.empty() ? "" : ", ") + node.node;
  }
  if (count == 0) return {};
  return say("{} of {} nodes read from the source, because their data could not be staged: {}.", count,
             facts.run.staging.size(), nodes);
}

Found staging_slow(const Facts& facts) {
  double staged = 0;
  for (const StagingRecord& node : facts.run.staging)
    staged = std::max(staged, node.sum(&StagedSource::seconds));
  double trained = 0;
  for (const Snapshot& rank : facts.run.ranks) {
    trained = std::max(trained, static_cast<double>(rank.counters.step_ns) * 1e-9);
  }
  if (staged < kStagingSeconds || staged < kStaging * trained) return {};
  return say("Staging took {:.0f} s, and all steps until now {:.0f} s.", staged, trained);
}

// Sums over the ranks with a sample.
struct Input {
  explicit Input(const Run& run) : waiting(share_of(run, Phase::data_wait)) {
    for (const Snapshot& rank : run.ranks) {
      if (!rank.resources) continue;
      const Resources& used = *rank.resources;
      build += static_cast<double>(used.loader_build_ns);
      delay += static_cast<double>(used.loader_delay_ns);
      cpu += static_cast<double>(used.user_ns + used.system_ns);
      loader += static_cast<double>(used.loader_user_ns + used.loader_system_ns);
      reads += static_cast<double>(used.read_calls);
      read += static_cast<double>(used.read_bytes);
      storage += static_cast<double>(used.storage_read_bytes);
      samples += static_cast<double>(rank.counters.bytes_read);
      steps = std::max(steps, rank.counters.steps);
      if (used.sampled_ns > rank.start_monotonic_ns)
        seconds += static_cast<double>(used.sampled_ns - rank.start_monotonic_ns) * 1e-9;
      ++ranks;
    }
  }
  bool waits() const { return waiting >= kDataWait; }
  bool lacks_cpus() const { return build > 0 && delay >= kWithoutCpu * build; }

  double waiting;      // typical share of a step that ranks wait for data
  double build = 0;    // ns
  double delay = 0;    // ns, part of it
  double cpu = 0;      // ns, processor time of all threads
  double loader = 0;   // ns, part of it: the loader's threads
  double reads = 0;    // calls
  double read = 0;     // bytes they returned
  double seconds = 0;  // of all ranks
  double storage = 0;  // bytes
  double samples = 0;  // bytes that the loader read
  double ranks = 0;
  std::uint64_t steps = 0;
};

std::string bytes(double count) {
  return format_bytes(static_cast<std::uint64_t>(count));
}

Found data_cpus_and_waits(const Facts& facts) {
  const Input input(facts.run);
  if (!input.waits() || !input.lacks_cpus()) return {};
  return say(
      "The loader's threads had no CPU for {:.0f} % of the time in which they built batches, and training waited for data for {:.0f} % of the step.",
      100 * input.delay / input.build, 100 * input.waiting);
}

// Without a wait, threads that had to wait for a CPU cost only what they take from computing.
Found data_cpus(const Facts& facts) {
  const Input input(facts.run);
  if (input.loader < kLoaderCpu * input.cpu || !input.lacks_cpus()) return {};
  return say(
      "The loader's threads use {:.0f} % of the processor time and share the CPUs with computing: they had none for {:.0f} % of the time in which they built batches.",
      100 * input.loader / input.cpu, 100 * input.delay / input.build);
}

Found small_reads(const Facts& facts) {
  const Input input(facts.run);
  if (!input.waits() || input.samples > 0 || input.seconds <= 0 || input.steps < kReadSteps ||
      input.reads < kManyReads * input.seconds || input.read >= kSmallRead * input.reads) {
    return {};
  }
  return say(
      "Waiting for data takes {:.0f} % of the step, and each rank reads {} at a time, {:.0f} times a second.",
      100 * input.waiting, bytes(input.read / input.reads), input.reads / input.seconds);
}

Found read_twice(const Facts& facts) {
  const Input input(facts.run);
  if (!input.waits() || input.samples == 0 ||
      input.storage - kOtherReads * input.ranks < kReadTwice * input.samples) {
    return {};
  }
  return say(
      "Waiting for data takes {:.0f} % of the step, and {} came from storage for {} of samples: parts are read more than once.",
      100 * input.waiting, bytes(input.storage), bytes(input.samples));
}

Found data_workers(const Facts& facts) {
  const Run& run = facts.run;
  const double share = share_of(run, Phase::data_wait);
  if (share < kDataWait || std::any_of(run.staging.begin(), run.staging.end(), reads_from_source)) return {};
  const auto waiting = std::count_if(run.ranks.begin(), run.ranks.end(), [&](const Snapshot& rank) {
    return share_of(rank, Phase::data_wait) >= share / 2;
  });
  return say("Waiting for data takes {:.0f} % of the step on {}.", 100 * share,
             waiting == std::ssize(run.ranks) ? "all ranks"
                                              : fmt::format("{} of {} ranks", waiting, run.ranks.size()));
}

Found data_not_staged(const Facts& facts) {
  if (!facts.run.staging.empty() || sum_of(facts.run, &Counters::bytes_read) == 0) return {};
  return data_workers(facts);
}

Found cost(const Facts& facts) {
  const auto& balance = facts.found.balance;
  if (!balance || !balance->supported) return {};
  Found found = say(
      "Cost: the plan promised that the slowest rank works {:.3f} times as long as the mean rank, but its forward and backward take {:.3f} times as long; the cost that fits the measured times best explains {:.3f}.",
      balance->promised, balance->measured, balance->fitted);
  found->names = cost_texts(*balance);
  return found;
}

Found padding(const Facts& facts) {
  const auto tokens = static_cast<double>(sum_of(facts.run, &Counters::tokens));
  const auto padded = static_cast<double>(sum_of(facts.run, &Counters::padding));
  if (padded < kPadding * (tokens + padded) || padded == 0) return {};
  return say("{:.0f} % of the tokens are padding.", 100 * padded / (tokens + padded));
}

struct LongSteps {
  std::string sentence;
  Phase phase = Phase::other;
};

// Looks at one rank: the others' steps are as long, or the rank is a straggler.
std::optional<LongSteps> long_steps(const Run& run) {
  const Snapshot& rank = run.ranks.front();
  std::vector<double> own;
  for (const record::Step& step : rank.steps) {
    if (step.index >= 2) own.push_back(static_cast<double>(step.own_ns()));
  }
  const double middle = median(own);
  double all = 0;
  double excess = 0;
  std::size_t count = 0;
  std::array<std::uint64_t, record::kPhases> phases{};
  for (const record::Step& step : rank.steps) {
    if (step.index < 2) continue;
    const auto ns = static_cast<double>(step.own_ns());
    all += ns;
    if (ns < kLongStep * middle) continue;
    ++count;
    excess += ns - middle;
    for (std::size_t i = 0; i < record::kPhases; ++i) phases.at(i) += step.phase_ns.at(i);
  }
  if (count == 0 || excess < kLongSteps * all ||
      static_cast<double>(count) > kLongSteps * static_cast<double>(own.size())) {
    return {};
  }
  phases[record::index(Phase::comm_exposed)] = 0;
  const auto phase = static_cast<Phase>(std::max_element(phases.begin(), phases.end()) - phases.begin());
  if (phase == Phase::checkpoint || phase == Phase::data_wait) return {};  // these have their own rules
  return LongSteps{
      fmt::format(
          "{} of the last {} steps take at least {:.0f} times as long as the median step, and {:.0f} % of the time, mostly in {}.",
          count, own.size(), kLongStep, 100 * excess / all, record::name(phase)),
      phase};
}

Found no_phase(const Facts& facts, bool loader_is_timed) {
  if ((share_of(facts.run, Phase::data_wait) > 0) != loader_is_timed) return {};
  const auto rare = long_steps(facts.run);
  if (rare && rare->phase == Phase::other) return {};
  return long_phase(facts, Phase::other, kOther, "{:.0f} % of the step is in no phase.");
}

Found skipped_steps(const Facts& facts) {
  const auto skipped = static_cast<double>(sum_of(facts.run, &Counters::skipped_steps));
  const auto steps = static_cast<double>(sum_of(facts.run, &Counters::steps));
  if (skipped < kSkipped * steps || skipped == 0) return {};
  return say(
      "The loss scaler skipped {:.0f} % of the steps because of infinite gradients; the scale is {:g}.",
      100 * skipped / steps, facts.run.ranks.front().counters.loss_scale);
}

Found damaged_samples(const Facts& facts) {
  std::uint64_t all = 0;
  std::vector<std::string> ranks;
  for (const Snapshot& rank : facts.run.ranks) {
    const std::uint64_t skipped = rank.resources ? rank.resources->skipped_samples : 0;
    all += skipped;
    if (skipped > 0 && ranks.size() < kMaxNamed)
      ranks.push_back(fmt::format("{} on rank {} ({})", skipped, rank.identity.rank, rank.identity.node));
  }
  if (all == 0) return {};
  return say("The loader left out {} damaged sample{}: {}.", all, all == 1 ? "" : "s",
             fmt::to_string(fmt::join(ranks, ", ")));
}

Found slower_than_before(const Facts& facts) {
  std::vector<double> ratios;
  for (const RankScore& rank : facts.found.late.ranks) {
    if (!rank.to_past) return {};
    ratios.push_back(*rank.to_past);
  }
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const double middle = ratios[(ratios.size() - 1) / 2];
  if (middle < kSlower) return {};
  return say("A step takes {:.0f} % more own time on most ranks than earlier in this run.",
             100 * (middle - 1));
}

Found no_tokens(const Facts& facts) {
  if (sum_of(facts.run, &Counters::tokens) > 0) return {};
  return say("None of the {} steps has tokens, so nothing is known of speed, padding and uneven input.",
             facts.run.ranks.front().counters.steps);
}

// Of these the first one that fires is enough.
constexpr auto kDataRules = std::to_array<Rule>(
    {{"data-cpus", Bound::input, data_cpus_and_waits,
      "More workers would not help: give them CPUs of their own (more #SBATCH --cpus-per-task, and #SBATCH --pin=auto,workers=4)."},
     {"data-cpus", Bound::input, data_cpus,
      "Training does not wait for data, so use fewer workers (LoaderOptions{.workers = 1}; to_text(loader.advice()) says how many suffice), or give them CPUs of their own (more #SBATCH --cpus-per-task, and #SBATCH --pin=auto,workers=4)."},
     {"small-reads", Bound::input, small_reads,
      "Pack the small files into large ones (lockstep-pack create), and read them with our loader.",
      "If these are files, pack them (lockstep-pack create) and read them with lockstep.Pack; if they are messages of DataLoader's workers, give it more workers (num_workers=4) or larger batches."},
     {"read-twice", Bound::input, read_twice,
      "Read the data once, in order, and then from the node: #SBATCH --stage=FOLDER, with --stage-tier=ram if it fits into memory; or ask for more memory (sbatch --mem), so that the kernel keeps what was read."},
     {"data-not-staged", Bound::input, data_not_staged,
      "The data is not on the nodes: #SBATCH --stage=FOLDER, and read it from $LOCKSTEP_DATA (docs/users/staging.md)."},
     {"data-workers", Bound::input, data_workers,
      "Give the loader more workers (#SBATCH --pin=auto,workers=4) and more batches ahead (LoaderOptions{.batches_ahead = 8}).",
      "Give DataLoader more workers (num_workers=4, persistent_workers=True), on CPUs of their own (#SBATCH --pin=auto,workers=4)."}});

constexpr auto kStagingRules = std::to_array<Rule>(
    {{"staging-failed", Bound::input, staging_failed,
      "A line in the job's output says why; if the disk or the quota is full: lockstep-stage ls --cache STORE, lockstep-stage gc --cache STORE."},
     {"staging-slow", kNone, staging_slow,
      "Start at once and copy meanwhile: #SBATCH --stage-mode=background."}});

constexpr auto kCostRule =
    std::to_array<Rule>({{"cost", Bound::imbalance, cost, "Set plan.cost = {} instead of {}{}."}});

constexpr auto kStepRules = std::to_array<Rule>(
    {{"padding", Bound::compute, padding,
      "Use packed batches under a token cap (plan.padded = false, plan.cap), or batches of similar lengths from our loader.",
      "Put samples of similar lengths together: lockstep.BatchSampler(lengths, cap=…, padded=True) in place of DataLoader's sampler. If it made these batches, try a smaller cap, or larger steps (step_tokens), which are larger batches for the optimizer too."},
     {"checkpoint", Bound::host,
      [](const Facts& facts) {
        return long_phase(facts, Phase::checkpoint, kCheckpoint,
                          "Writing checkpoints takes {:.0f} % of the step.");
      },
      "Write them less often (if (step % 1000 == 0) checkpointer.save(step)), and to the node's disk first (CheckpointerOptions{.local_dir = …}).",
      "Write them less often (if step % 1000 == 0), and in the background (torch.distributed.checkpoint.async_save)."},
     {"long-steps", Bound::host,
      [](const Facts& facts) {
        const auto rare = long_steps(facts.run);
        return rare ? Found(Finding{rare->sentence}) : std::nullopt;
      },
      "If these are evaluations, keep them out of the steps: lockstep::Validation, or world.timer().begin_step() before and after each; if their samples are long, set plan.step_stretch = 1.",
      "If these are evaluations, keep them out of the steps: lockstep.begin_step() after each; if their samples are long, set stretch=1 in lockstep.BatchSampler."},
     {"no-phase", Bound::host, [](const Facts& facts) { return no_phase(facts, true); },
      "Put the parts of the loop in scopes, the optimizer too: auto scope = world.timer().phase(Phase::optimizer).",
      "Put forward, backward and optimizer into blocks (with lockstep.phase(\"optimizer\"): …)."},
     {"no-phase", Bound::host, [](const Facts& facts) { return no_phase(facts, false); },
      "Give your data loader to lockstep::profile::timed_batches(), and put the optimizer in a scope: auto scope = world.timer().phase(Phase::optimizer).",
      "Loop over lockstep.batches(loader), and put forward, backward and optimizer into blocks (with lockstep.phase(\"optimizer\"): …)."},
     {"optimizer", Bound::compute,
      [](const Facts& facts) {
        return long_phase(facts, Phase::optimizer, kOptimizer, "The optimizer takes {:.0f} % of the step.");
      },
      "Use lockstep::FusedAdamW for torch::optim::AdamW, and lockstep::DistributedOptimizer, which updates 1 / ranks of the parameters on each rank.",
      "Use a fused optimizer (torch.optim.AdamW(…, fused=True)), or one that updates 1 / ranks of the parameters on each rank (torch.distributed.optim.ZeroRedundancyOptimizer)."},
     {"host-to-device", Bound::input,
      [](const Facts& facts) {
        return long_phase(facts, Phase::host_to_device, kCopy,
                          "Copying batches to the device takes {:.0f} % of the step.");
      },
      "Let the loader copy them one batch ahead: LoaderOptions{.device = torch::Device(torch::kCUDA, world.local_rank())}.",
      "Copy from page-locked memory while the GPU computes: DataLoader(…, pin_memory=True), batch.to(device, non_blocking=True)."},
     {"skipped-steps", kNone, skipped_steps,
      "Use bfloat16, which needs no scaling (lockstep::Autocast), or let the scale grow less often: GradScalerOptions{.growth_interval = 20000}."},
     {"damaged-samples", kNone, damaged_samples,
      "The job's output names each of them: repair or remove them, and pack the data again."},
     {"slower-than-before", Bound::compute, slower_than_before,
      "If the samples did not get longer, look on the nodes for memory that grows (free -h) and for a falling clock (grep MHz /proc/cpuinfo)."}});

constexpr auto kTokenRule = std::to_array<Rule>(
    {{"no-tokens", kNone, no_tokens,
      "Say how many there are: ddp.backward(loss, tokens), or timer.end_step({.tokens = tokens}).",
      "Say how many there are: lockstep.end_step(tokens=batch.numel())."}});

// Causes that may keep a run from its first step; the other rules are about its steps.
constexpr std::array<std::string_view, 3> kEarly = {"staging-failed", "memory-full", "cpu-limit"};

enum class Take { each, first };

// Adds what these rules find to `advice`.
void apply(std::span<const Rule> rules, Take take, const Facts& facts, std::vector<Advice>& advice) {
  const bool begun = sum_of(facts.run, &Counters::steps) > 0;
  for (const Rule& rule : rules) {
    if (!begun && std::find(kEarly.begin(), kEarly.end(), rule.id) == kEarly.end()) continue;
    const Found found = rule.find(facts);
    if (!found) continue;
    std::string remedy = rule.remedy;
    if (std::vector<std::string> names = found->names; !names.empty()) {
      names.resize(3);
      remedy = fmt::format(fmt::runtime(remedy), names[0], names[1], names[2]);
    }
    const bool python = facts.found.python && rule.python != nullptr;
    advice.push_back({rule.id, rule.part, found->sentence, python ? rule.python : remedy});
    if (take == Take::first) return;
  }
}

}  // namespace

Diagnosis diagnose(const Run& run) {
  const std::vector<StepRow> rows = common_steps(run);
  Diagnosis found{.late = find_stragglers(run, rows),
                  .memory = memory_use(run),
                  .verdict = find_verdict(run, rows),
                  .balance = find_balance(run, rows),
                  .python = std::all_of(run.ranks.begin(), run.ranks.end(),
                                        [](const Snapshot& rank) { return rank.counters.from_python == 1; })};
  std::vector<Advice> advice;
  Facts facts{.run = run, .found = found};
  apply(kStagingRules, Take::each, facts, advice);
  apply(kDataRules, Take::first, facts, advice);
  apply(kCostRule, Take::each, facts, advice);
  for (const Straggler& late : found.late.found) {
    facts.late = &late;
    apply(late_rules(), Take::first, facts, advice);
  }
  apply(kStepRules, Take::each, facts, advice);
  apply(resource_rules(), Take::each, facts, advice);
  apply(kTokenRule, Take::each, facts, advice);
  found.advice = std::move(advice);
  return found;
}

std::vector<std::string> advise(const Run& run, const Diagnosis& found) {
  std::vector<std::string> texts;
  for (const Advice& advice : found.advice) texts.push_back(advice.text());
  if (!texts.empty()) return texts;
  if (sum_of(run, &Counters::steps) == 0) return {"No step has ended yet."};
  double slowest = 1;
  for (const RankScore& rank : found.late.ranks) slowest = std::max(slowest, rank.to_peers);
  const std::string ranks =
      run.ranks.size() < 2 ? ""
                           : fmt::format(", and the slowest rank works {:.1f} % longer than the median rank",
                                         100 * (slowest - 1));
  return {fmt::format(
      "Nothing stands out: waiting for data takes {:.1f} % of the step, communication {:.1f} %{}.",
      100 * share_of(run, Phase::data_wait), 100 * share_of(run, Phase::comm_exposed), ranks)};
}

}  // namespace lockstep::report
