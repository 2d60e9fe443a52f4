#include "exporters/report/advice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "common/median.h"
#include "common/units.h"
#include "exporters/report/gpu_advice.h"
#include "exporters/report/input_advice.h"
#include "exporters/report/profile_advice.h"
#include "exporters/report/python_advice.h"
#include "exporters/report/resource_advice.h"
#include "exporters/report/straggler_advice.h"

namespace lockstep::report {
namespace {

using exporter::StagingRecord;
using exporter::StagingState;
using record::Counters;
using record::Phase;
using record::Snapshot;

// Below these shares a change is not worth the effort.
constexpr double kCopy = 0.10;
constexpr double kCheckpoint = 0.10;
constexpr double kPadding = 0.10;
constexpr double kOptimizer = 0.20;
constexpr double kOther = 0.20;
constexpr double kSkipped = 0.05;
constexpr double kStaging = 0.20;
constexpr double kStagingSeconds = 60;
constexpr double kSlower = 1.15;      // than in the past
constexpr double kLongStep = 3;       // times the median step
constexpr double kLongSteps = 0.10;   // at most this share of the steps, at least this share of the time
constexpr std::size_t kMaxNamed = 8;  // ranks

double share_of(const Snapshot& rank, Phase phase) {
  const auto ns = static_cast<double>(rank.counters.phase_ns[record::index(phase)]);
  return rank.counters.step_ns == 0 ? 0 : ns / static_cast<double>(rank.counters.step_ns);
}

struct Facts {
  const Run& run;
  const Stragglers& late;

  /// A value that at least half of the ranks reach, so that one rank's fault does not count as the job's.
  template <typename Value>
  double typical(const Value& value) const {
    std::vector<double> values;
    for (const Snapshot& rank : run.ranks) values.push_back(value(rank));
    std::sort(values.begin(), values.end());
    return values[(values.size() - 1) / 2];
  }
  double share(Phase phase) const {
    return typical([&](const Snapshot& rank) { return share_of(rank, phase); });
  }
  std::uint64_t sum(std::uint64_t Counters::*field) const {
    std::uint64_t total = 0;
    for (const Snapshot& rank : run.ranks) total += rank.counters.*field;
    return total;
  }
};

using Advised = std::optional<Advice>;

bool reads_from_source(const StagingRecord& node) {
  return node.state == StagingState::source || node.state == StagingState::failed;
}

Advised data_wait(const Facts& facts) {
  const double share = facts.share(Phase::data_wait);
  const auto& staging = facts.run.staging;
  if (auto advice = input_advice(facts.run, share)) return advice;
  if (share < kDataWait || std::any_of(staging.begin(), staging.end(), reads_from_source)) return {};
  const auto& ranks = facts.run.ranks;
  const auto waiting = std::count_if(ranks.begin(), ranks.end(), [&](const Snapshot& rank) {
    return share_of(rank, Phase::data_wait) >= share / 2;
  });
  const std::string finding = fmt::format(
      "Waiting for data takes {:.0f} % of the step on {}.", 100 * share,
      waiting == std::ssize(ranks) ? "all ranks" : fmt::format("{} of {} ranks", waiting, ranks.size()));
  if (staging.empty() && facts.sum(&Counters::bytes_read) > 0) {
    return Advice{
        "data-not-staged", finding,
        "The data is not on the nodes: #SBATCH --stage=FOLDER, and read it from $LOCKSTEP_DATA (docs/users/staging.md)."};
  }
  return Advice{
      "data-workers", finding,
      "Give the loader more workers (#SBATCH --pin=auto,workers=4) and more batches ahead (LoaderOptions{.batches_ahead = 8})."};
}

Advised staging_failed(const Facts& facts) {
  std::string nodes;
  std::size_t count = 0;
  for (const StagingRecord& node : facts.run.staging) {
    if (!reads_from_source(node)) continue;
    if (++count <= 4) nodes += (nodes.empty() ? "" : ", ") + node.node;
  }
  if (count == 0) return {};
  return Advice{
      "staging-failed",
      fmt::format("{} of {} nodes read from the source, because their data could not be staged: {}.", count,
                  facts.run.staging.size(), nodes),
      "A line in the job's output says why; if the disk or the quota is full: lockstep-stage ls --cache STORE, lockstep-stage gc --cache STORE."};
}

Advised staging_slow(const Facts& facts) {
  double staged = 0;
  for (const StagingRecord& node : facts.run.staging) staged = std::max(staged, node.seconds());
  double trained = 0;
  for (const Snapshot& rank : facts.run.ranks) {
    trained = std::max(trained, static_cast<double>(rank.counters.step_ns) * 1e-9);
  }
  if (staged < kStagingSeconds || staged < kStaging * trained) return {};
  return Advice{"staging-slow",
                fmt::format("Staging took {:.0f} s, and all steps until now {:.0f} s.", staged, trained),
                "Start at once and copy meanwhile: #SBATCH --stage-mode=background."};
}

Advised padding(const Facts& facts) {
  const auto tokens = static_cast<double>(facts.sum(&Counters::tokens));
  const auto padded = static_cast<double>(facts.sum(&Counters::padding));
  if (padded < kPadding * (tokens + padded) || padded == 0) return {};
  return Advice{
      "padding", fmt::format("{:.0f} % of the tokens are padding.", 100 * padded / (tokens + padded)),
      "Use packed batches under a token cap (plan.padded = false, plan.cap), or batches of similar lengths from our loader."};
}

Advised checkpoint(const Facts& facts) {
  const double share = facts.share(Phase::checkpoint);
  if (share < kCheckpoint) return {};
  return Advice{
      "checkpoint", fmt::format("Writing checkpoints takes {:.0f} % of the step.", 100 * share),
      "Write them less often (if (step % 1000 == 0) checkpointer.save(step)), and to the node's disk first (CheckpointerOptions{.local_dir = …})."};
}

Advised optimizer(const Facts& facts) {
  const double share = facts.share(Phase::optimizer);
  if (share < kOptimizer) return {};
  return Advice{
      "optimizer", fmt::format("The optimizer takes {:.0f} % of the step.", 100 * share),
      "Use lockstep::FusedAdamW for torch::optim::AdamW, and lockstep::DistributedOptimizer, which updates 1 / ranks of the parameters on each rank."};
}

Advised host_to_device(const Facts& facts) {
  const double share = facts.share(Phase::host_to_device);
  if (share < kCopy) return {};
  return Advice{
      "host-to-device", fmt::format("Copying batches to the device takes {:.0f} % of the step.", 100 * share),
      "Let the loader copy them one batch ahead: LoaderOptions{.device = torch::Device(torch::kCUDA, world.local_rank())}."};
}

Advised skipped_steps(const Facts& facts) {
  const auto skipped = static_cast<double>(facts.sum(&Counters::skipped_steps));
  const auto steps = static_cast<double>(facts.sum(&Counters::steps));
  if (skipped < kSkipped * steps || skipped == 0) return {};
  return Advice{
      "skipped-steps",
      fmt::format(
          "The loss scaler skipped {:.0f} % of the steps because of infinite gradients; the scale is {:g}.",
          100 * skipped / steps, facts.run.ranks.front().counters.loss_scale),
      "Use bfloat16, which needs no scaling (lockstep::Autocast), or let the scale grow less often: GradScalerOptions{.growth_interval = 20000}."};
}

Advised damaged_samples(const Facts& facts) {
  std::uint64_t all = 0;
  std::vector<std::string> ranks;
  for (const Snapshot& rank : facts.run.ranks) {
    const std::uint64_t skipped = rank.resources ? rank.resources->skipped_samples : 0;
    all += skipped;
    if (skipped > 0 && ranks.size() < kMaxNamed)
      ranks.push_back(fmt::format("{} on rank {} ({})", skipped, rank.identity.rank, rank.identity.node));
  }
  if (all == 0) return {};
  return Advice{"damaged-samples",
                fmt::format("The loader left out {} damaged sample{}: {}.", all, all == 1 ? "" : "s",
                            fmt::join(ranks, ", ")),
                "The job's output names each of them: repair or remove them, and pack the data again."};
}

Advised no_tokens(const Facts& facts) {
  if (facts.sum(&Counters::tokens) > 0) return {};
  return Advice{
      "no-tokens",
      fmt::format("None of the {} steps has tokens, so nothing is known of speed, padding and uneven input.",
                  facts.run.ranks.front().counters.steps),
      "Say how many there are: ddp.backward(loss, tokens), or timer.end_step({.tokens = tokens})."};
}

Advised slower(const Facts& facts) {
  std::vector<double> ratios;
  for (const RankScore& rank : facts.late.ranks) {
    if (!rank.to_past) return {};
    ratios.push_back(*rank.to_past);
  }
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const double typical = ratios[(ratios.size() - 1) / 2];
  if (typical < kSlower) return {};
  return Advice{
      "slower-than-before",
      fmt::format("A step takes {:.0f} % more own time on most ranks than earlier in this run.",
                  100 * (typical - 1)),
      "If the samples did not get longer, look on the nodes for memory that grows (free -h) and for a falling clock (grep MHz /proc/cpuinfo)."};
}

struct LongSteps {
  Advice advice;
  Phase phase = Phase::other;
};

// Looks at one rank: the others' steps are as long, or the rank is a straggler.
std::optional<LongSteps> long_steps(const Snapshot& rank) {
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
      {"long-steps",
       fmt::format(
           "{} of the last {} steps take at least {:.0f} times as long as the median step, and {:.0f} % of the time, mostly in {}.",
           count, own.size(), kLongStep, 100 * excess / all, record::name(phase)),
       "If these are evaluations, keep them out of the steps: lockstep::Validation, or world.timer().begin_step() before and after each; if their samples are long, set plan.step_stretch = 1."},
      phase};
}

void add(const Advised& advised, std::vector<Advice>& advice) {
  if (advised) advice.push_back(*advised);
}

}  // namespace

Findings find_all(const Run& run) {
  const std::vector<StepRow> rows = common_steps(run);
  Findings found{.late = find_stragglers(run, rows),
                 .memory = memory_use(run),
                 .verdict = find_verdict(run, rows),
                 .balance = find_balance(run, rows),
                 .python = from_python(run)};
  std::vector<Advice>& advice = found.advice;
  const Stragglers& late = found.late;
  const Facts facts{.run = run, .late = late};
  add(staging_failed(facts), advice);
  if (facts.sum(&Counters::steps) == 0) {
    add_resource_advice(run, found);  // memory may have ended it before its first step
    return found;
  }
  add(staging_slow(facts), advice);
  add(data_wait(facts), advice);
  const Advised cost = found.balance ? advice_on(*found.balance) : Advised();
  add(cost, advice);
  for (const Straggler& one : late.found) {
    const bool of_cost =
        one.ranks.empty() && (one.cause == Cause::uneven_input || one.cause == Cause::slow_worker);
    if (cost && of_cost) continue;
    // If most ranks wait for data or write checkpoints, that rule's advice also covers the late rank.
    const bool of_all = (one.cause == Cause::input_data && facts.share(Phase::data_wait) >= kDataWait) ||
                        (one.cause == Cause::checkpoint && facts.share(Phase::checkpoint) >= kCheckpoint);
    if (!of_all || !one.ranks.empty()) advice.push_back(advice_on(late, one));
  }
  add(padding(facts), advice);
  add(checkpoint(facts), advice);
  const auto rare = long_steps(run.ranks.front());
  if (rare) advice.push_back(rare->advice);
  if (const double share = facts.share(Phase::other);
      share >= kOther && (!rare || rare->phase != Phase::other)) {
    advice.push_back(
        {"no-phase", fmt::format("{:.0f} % of the step is in no phase.", 100 * share),
         "Give your data loader to lockstep::profile::timed_batches(), and put the optimizer in a scope: auto scope = world.timer().phase(Phase::optimizer)."});
  }
  add(optimizer(facts), advice);
  add(host_to_device(facts), advice);
  add(skipped_steps(facts), advice);
  add(damaged_samples(facts), advice);
  add(slower(facts), advice);
  add_gpu_advice(run, found);
  add_resource_advice(run, found);
  add_profile_advice(run, advice);
  add(no_tokens(facts), advice);
  if (found.python) use_python_remedies(advice);
  return found;
}

std::vector<std::string> advise(const Run& run, const Findings& found) {
  std::vector<std::string> texts;
  for (const Advice& advice : found.advice) texts.push_back(advice.text());
  if (!texts.empty()) return texts;
  const Facts facts{.run = run, .late = found.late};
  if (facts.sum(&Counters::steps) == 0) return {"No step has ended yet."};
  double slowest = 1;
  for (const RankScore& rank : found.late.ranks) slowest = std::max(slowest, rank.to_peers);
  const std::string ranks =
      run.ranks.size() < 2 ? ""
                           : fmt::format(", and the slowest rank works {:.1f} % longer than the median rank",
                                         100 * (slowest - 1));
  return {fmt::format(
      "Nothing stands out: waiting for data takes {:.1f} % of the step, communication {:.1f} %{}.",
      100 * facts.share(Phase::data_wait), 100 * facts.share(Phase::comm_exposed), ranks)};
}

}  // namespace lockstep::report
