// The rules on ranks that others wait for.
#include <cmath>

#include "exporters/report/rules.h"

namespace lockstep::report {
namespace {

using record::Phase;

// Times the past. The time of communication varies more.
constexpr double kSlowerRank = 1.15;
constexpr double kSlowerNetwork = 1.5;
// Ranks whose tokens differ by less have equal input.
constexpr double kEqualTokens = 0.02;

constexpr const char* kSlowInTurnsPython =
    "No node is at fault. If the ranks share cores, bind them (--pin=auto; hwloc-ps -a); if lengths differ much, balance the cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1)).";

std::string per_step(double ms) {
  return milliseconds(ms) + " ms";
}

std::string what_if(const Facts& facts) {
  const Straggler& late = *facts.late;
  const Stragglers& all = facts.found.late;
  std::string text = fmt::format("a step would take {} instead of {}", per_step(late.step_ms_without),
                                 per_step(all.step_ms));
  if (all.step_ms_without_late && !late.ranks.empty() && late.cause != Cause::network) {
    text += fmt::format(", and {} without all late ranks", per_step(*all.step_ms_without_late));
  }
  return text;
}

enum class Of { ranks, turns };  // the late ranks are known, or the ranks take turns

bool is(const Facts& facts, Cause cause, Of of) {
  return facts.late->cause == cause && facts.late->ranks.empty() == (of == Of::turns);
}

Found slow_rank(const Facts& facts) {
  if (!is(facts, Cause::slow_worker, Of::ranks)) return {};
  const Straggler& late = *facts.late;
  const std::string slower =
      late.to_past.value_or(1) >= kSlowerRank
          ? fmt::format(", {:.0f} % slower than earlier in this run", 100 * (*late.to_past - 1))
          : "";
  return Finding{
      fmt::format(
          "Slow worker: {} works {:.0f} % longer per step than the median rank ({}) and is last in {:.0f} % of the steps{}; without this delay {}.",
          who(late), 100 * late.excess, late.phases, 100 * late.often, slower, what_if(facts)),
      {late.node}};
}

// A cost that does not describe the model explains this.
bool is_uneven_cost(const Facts& facts) {
  return facts.found.balance && facts.found.balance->supported;
}

Found slow_in_turns(const Facts& facts) {
  if (!is(facts, Cause::slow_worker, Of::turns) || is_uneven_cost(facts)) return {};
  const Straggler& late = *facts.late;
  return say(
      "The ranks take turns at being slow: the slowest one works {:.0f} % longer than the median rank ({}), and its tokens differ by {:.0f} %; if all were equal, {}.",
      100 * late.excess, late.phases, 100 * std::abs(late.more_tokens), what_if(facts));
}

Found uneven_steps(const Facts& facts) {
  if (!is(facts, Cause::uneven_input, Of::turns) || is_uneven_cost(facts)) return {};
  return say(
      "Uneven input: the slowest rank has {:.0f} % more tokens and works {:.0f} % longer than the median rank, each time another one; if all were equal, {}.",
      100 * facts.late->more_tokens, 100 * facts.late->excess, what_if(facts));
}

Found uneven_input(const Facts& facts) {
  if (!is(facts, Cause::uneven_input, Of::ranks)) return {};
  const Straggler& late = *facts.late;
  const std::string why = late.more_tokens >= late.excess / 2
                              ? fmt::format("it has {:.0f} % more tokens", 100 * late.more_tokens)
                              : fmt::format("its samples are {:.0f} % longer", 100 * late.longer_samples);
  return say(
      "Uneven input: {} works {:.0f} % longer per step than the median rank, because {}; with equal input {}.",
      who(late), 100 * late.excess, why, what_if(facts));
}

// If most ranks wait for data or write checkpoints, that rule's advice also covers ranks that take turns.
Found data_in_turns(const Facts& facts) {
  if (!is(facts, Cause::input_data, Of::turns) || share_of(facts.run, Phase::data_wait) >= kDataWait)
    return {};
  return say(
      "Input data: in each step another rank waits for its data, {} longer than the median rank; without that {}.",
      per_step(facts.late->lost_ms), what_if(facts));
}

Found data_rank(const Facts& facts) {
  if (!is(facts, Cause::input_data, Of::ranks)) return {};
  return Finding{
      fmt::format(
          "Input data: {} waits for its data {} per step longer than the median rank; without that {}.",
          who(*facts.late), per_step(facts.late->lost_ms), what_if(facts)),
      {facts.late->node}};
}

Found checkpoint_rank(const Facts& facts) {
  const Straggler& late = *facts.late;
  if (late.cause != Cause::checkpoint) return {};
  if (late.ranks.empty() && share_of(facts.run, Phase::checkpoint) >= kCheckpoint) return {};
  return say("Checkpoint: the others wait {} per step while {} writes; without that {}.",
             per_step(late.lost_ms), late.ranks.empty() ? "one of the ranks" : who(late), what_if(facts));
}

Found network_rank(const Facts& facts) {
  if (!is(facts, Cause::network, Of::ranks)) return {};
  return Finding{
      fmt::format(
          "Network: the others wait {} per step for the communication of {}, which computes no longer than they do; without that {}.",
          per_step(facts.late->lost_ms), who(*facts.late), what_if(facts)),
      {facts.late->node}};
}

Found network_slower(const Facts& facts) {
  const Straggler& late = *facts.late;
  if (!is(facts, Cause::network, Of::turns) || late.to_past.value_or(1) < kSlowerNetwork) return {};
  return say(
      "Network: communication that no late rank explains takes {:.0f} % of the step, {:.1f} times as long as earlier in this run.",
      100 * late.lost_ms / facts.found.late.step_ms, *late.to_past);
}

Found communication(const Facts& facts) {
  if (!is(facts, Cause::network, Of::turns)) return {};
  return say(
      "Communication that did not overlap with backward takes {:.0f} % of the step ({}), and no late rank explains it.",
      100 * facts.late->lost_ms / facts.found.late.step_ms, per_step(facts.late->lost_ms));
}

// A rule for each late rank: the first one that fires.
constexpr auto kLateRules = std::to_array<Rule>(
    {{"slow-rank", Bound::imbalance, slow_rank,
      "Look on {} for other processes (top), a low clock (grep MHz /proc/cpuinfo) and shared cores (hwloc-ps -a)."},
     {"slow-in-turns", Bound::imbalance,
      [](const Facts& facts) {
        return std::abs(facts.late->more_tokens) < kEqualTokens ? slow_in_turns(facts) : std::nullopt;
      },
      "No node is at fault. Look on the nodes for other processes (top), and bind ranks that share cores (--pin=auto; hwloc-ps -a).",
      kSlowInTurnsPython},
     {"slow-in-turns", Bound::imbalance, slow_in_turns,
      "No node is at fault. If the ranks share cores, bind them (--pin=auto; hwloc-ps -a); if lengths differ much, balance the cost (plan.cost, lockstep-plan make --cost).",
      kSlowInTurnsPython},
     {"uneven-steps", Bound::imbalance, uneven_steps,
      "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…})); if it does that already, give it more samples per step to choose from: lockstep-plan suggest recommends plan.accumulate and plan.step_tokens.",
      "Give the ranks equal cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1)); if they have that already, give it more samples per step to choose from (step_tokens=…; lockstep-plan suggest recommends a number)."},
     {"uneven-input", Bound::imbalance, uneven_input,
      "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…})), or check the lengths with lockstep-plan make --cost.",
      "Give the ranks equal cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1)) in place of DataLoader's sampler."},
     {"data-in-turns", Bound::input, data_in_turns,
      "Let the loader work further ahead: LoaderOptions{.batches_ahead = 8}.",
      "Let DataLoader work further ahead: prefetch_factor=8."},
     {"data-rank", Bound::input, data_rank,
      "Check the disk on {} (iostat -x) and the loader's cores (hwloc-ps -a); if the data is on a shared file system, stage it (#SBATCH --stage=FOLDER).",
      "Check the disk on that node (iostat -x) and the CPUs of DataLoader's workers (hwloc-ps -a); if the data is on a shared file system, stage it (#SBATCH --stage=FOLDER)."},
     {"checkpoint-rank", Bound::host, checkpoint_rank,
      "Write in the background, to the node's disk first: CheckpointerOptions{.local_dir = …}, checkpointer.save(step).",
      "Write in the background: torch.distributed.checkpoint.async_save."},
     {"network-rank", Bound::communication, network_rank,
      "Check the network on {} (ip -s link) and whether its communication thread has a core (hwloc-ps -a)."},
     {"network-slower", Bound::communication, network_slower,
      "Check the links between the nodes (ip -s link) and what else uses them."},
     {"communication", Bound::communication, communication,
      "Give each step more work (plan.accumulate = 4, or a larger plan.cap), or send half as many bytes (ddp.register_comm_hook(lockstep::bf16_compress_hook())); if it is more than the gradients need, check the network.",
      "Give each step more work (accumulate=4, or a larger cap, in lockstep.BatchSampler), or send half as many bytes (ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)); if it is more than the gradients need, check the network."}});

}  // namespace

std::span<const Rule> late_rules() {
  return kLateRules;
}

}  // namespace lockstep::report
