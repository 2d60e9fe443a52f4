#include "exporters/report/straggler_advice.h"

#include <fmt/format.h>

#include <cmath>

namespace lockstep::report {
namespace {

// Times the past. The time of communication varies more.
constexpr double kSlowerRank = 1.15;
constexpr double kSlowerNetwork = 1.5;
// Ranks whose tokens differ by less have equal input.
constexpr double kEqualTokens = 0.02;

// In milliseconds whatever the length, as in the tables: a sentence with several times must not mix units.
std::string per_step(double ms) {
  return fmt::format("{:.{}f} ms", ms, ms >= 99.5 ? 0 : ms >= 9.95 ? 1 : 2);
}

std::string what_if(const Stragglers& all, const Straggler& late) {
  std::string text = fmt::format("a step would take {} instead of {}", per_step(late.step_ms_without),
                                 per_step(all.step_ms));
  if (all.step_ms_without_late && !late.ranks.empty() && late.cause != Cause::network) {
    text += fmt::format(", and {} without all late ranks", per_step(*all.step_ms_without_late));
  }
  return text;
}

Advice slow_worker(const Stragglers& all, const Straggler& late) {
  const bool slower = late.to_past.value_or(1) >= kSlowerRank;
  return {
      "slow-rank",
      fmt::format(
          "Slow worker: {} works {:.0f} % longer per step than the median rank ({}) and is last in {:.0f} % of the steps{}; without this delay {}.",
          who(late), 100 * late.excess, late.phases, 100 * late.often,
          slower ? fmt::format(", {:.0f} % slower than earlier in this run", 100 * (*late.to_past - 1)) : "",
          what_if(all, late)),
      fmt::format(
          "Look on {} for other processes (top), a low clock (grep MHz /proc/cpuinfo) and shared cores (hwloc-ps -a).",
          late.node)};
}

Advice slow_in_turns(const Stragglers& all, const Straggler& late) {
  const bool equal_input = std::abs(late.more_tokens) < kEqualTokens;
  return {
      "slow-in-turns",
      fmt::format(
          "The ranks take turns at being slow: the slowest one works {:.0f} % longer than the median rank ({}), and its tokens differ by {:.0f} %; if all were equal, {}.",
          100 * late.excess, late.phases, 100 * std::abs(late.more_tokens), what_if(all, late)),
      equal_input
          ? "No node is at fault. Look on the nodes for other processes (top), and bind ranks that share cores (--pin=auto; hwloc-ps -a)."
          : "No node is at fault. If the ranks share cores, bind them (--pin=auto; hwloc-ps -a); if lengths differ much, balance the cost (plan.cost, lockstep-plan make --cost)."};
}

Advice uneven_input(const Stragglers& all, const Straggler& late) {
  if (late.ranks.empty()) {
    return {
        "uneven-steps",
        fmt::format(
            "Uneven input: the slowest rank has {:.0f} % more tokens and works {:.0f} % longer than the median rank, each time another one; if all were equal, {}.",
            100 * late.more_tokens, 100 * late.excess, what_if(all, late)),
        "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…})); if it does that already, give it more samples per step to choose from: lockstep-plan suggest recommends plan.accumulate and plan.step_tokens."};
  }
  const std::string why = late.more_tokens >= late.excess / 2
                              ? fmt::format("it has {:.0f} % more tokens", 100 * late.more_tokens)
                              : fmt::format("its samples are {:.0f} % longer", 100 * late.longer_samples);
  return {
      "uneven-input",
      fmt::format(
          "Uneven input: {} works {:.0f} % longer per step than the median rank, because {}; with equal input {}.",
          who(late), 100 * late.excess, why, what_if(all, late)),
      "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…})), or check the lengths with lockstep-plan make --cost."};
}

Advice late_data(const Stragglers& all, const Straggler& late) {
  if (late.ranks.empty()) {
    return {
        "data-in-turns",
        fmt::format(
            "Input data: in each step another rank waits for its data, {} longer than the median rank; without that {}.",
            per_step(late.lost_ms), what_if(all, late)),
        "Let the loader work further ahead: LoaderOptions{.batches_ahead = 8}."};
  }
  return {
      "data-rank",
      fmt::format(
          "Input data: {} waits for its data {} per step longer than the median rank; without that {}.",
          who(late), per_step(late.lost_ms), what_if(all, late)),
      fmt::format(
          "Check the disk on {} (iostat -x) and the loader's cores (hwloc-ps -a); if the data is on a shared file system, stage it (#SBATCH --stage=FOLDER).",
          late.node)};
}

Advice late_checkpoint(const Stragglers& all, const Straggler& late) {
  const std::string rank = late.ranks.empty() ? "one of the ranks" : who(late);
  return {
      "checkpoint-rank",
      fmt::format("Checkpoint: the others wait {} per step while {} writes; without that {}.",
                  per_step(late.lost_ms), rank, what_if(all, late)),
      "Write in the background, to the node's disk first: CheckpointerOptions{.local_dir = …}, checkpointer.save(step)."};
}

Advice network(const Stragglers& all, const Straggler& late) {
  if (!late.ranks.empty()) {
    return {
        "network-rank",
        fmt::format(
            "Network: the others wait {} per step for the communication of {}, which computes no longer than they do; without that {}.",
            per_step(late.lost_ms), who(late), what_if(all, late)),
        fmt::format(
            "Check the network on {} (ip -s link) and whether its communication thread has a core (hwloc-ps -a).",
            late.node)};
  }
  const double share = 100 * late.lost_ms / all.step_ms;
  if (late.to_past.value_or(1) >= kSlowerNetwork) {
    return {
        "network-slower",
        fmt::format(
            "Network: communication that no late rank explains takes {:.0f} % of the step, {:.1f} times as long as earlier in this run.",
            share, *late.to_past),
        "Check the links between the nodes (ip -s link) and what else uses them."};
  }
  return {
      "communication",
      fmt::format(
          "Communication that did not overlap with backward takes {:.0f} % of the step ({}), and no late rank explains it.",
          share, per_step(late.lost_ms)),
      "Give each step more work (plan.accumulate = 4, or a larger plan.cap), or send half as many bytes (ddp.register_comm_hook(lockstep::bf16_compress_hook())); if it is more than the gradients need, check the network."};
}

}  // namespace

Advice advice_on(const Stragglers& all, const Straggler& late) {
  switch (late.cause) {
    case Cause::slow_worker:
      return late.ranks.empty() ? slow_in_turns(all, late) : slow_worker(all, late);
    case Cause::uneven_input:
      return uneven_input(all, late);
    case Cause::input_data:
      return late_data(all, late);
    case Cause::checkpoint:
      return late_checkpoint(all, late);
    case Cause::network:
      break;
  }
  return network(all, late);
}

}  // namespace lockstep::report
