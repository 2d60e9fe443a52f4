#include "exporters/report/python_advice.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::report {
namespace {

struct Remedy {
  std::string_view rule;
  const char* text;
};

// Only rules that can fire on what lockstep.py measures.
constexpr std::array<Remedy, 16> kPythonTexts = {{
    {"data-workers",
     "Give DataLoader more workers (num_workers=4, persistent_workers=True), on CPUs of their own (#SBATCH --pin=auto,workers=4)."},
    {"small-reads",
     "If these are files, pack them (lockstep-pack create) and read them with lockstep.Pack; if they are messages of DataLoader's workers, give it more workers (num_workers=4) or larger batches."},
    {"data-rank",
     "Check the disk on that node (iostat -x) and the CPUs of DataLoader's workers (hwloc-ps -a); if the data is on a shared file system, stage it (#SBATCH --stage=FOLDER)."},
    {"data-in-turns", "Let DataLoader work further ahead: prefetch_factor=8."},
    {"slow-in-turns",
     "No node is at fault. If the ranks share cores, bind them (--pin=auto; hwloc-ps -a); if lengths differ much, balance the cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1))."},
    {"uneven-input",
     "Give the ranks equal cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1)) in place of DataLoader's sampler."},
    {"uneven-steps",
     "Give the ranks equal cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1)); if they have that already, give it more samples per step to choose from (step_tokens=…; lockstep-plan suggest recommends a number)."},
    {"communication",
     "Give each step more work (accumulate=4, or a larger cap, in lockstep.BatchSampler), or send half as many bytes (ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)); if it is more than the gradients need, check the network."},
    {"padding",
     "Put samples of similar lengths together: lockstep.BatchSampler(lengths, cap=…, padded=True) in place of DataLoader's sampler."},
    {"checkpoint",
     "Write them less often (if step % 1000 == 0), and in the background (torch.distributed.checkpoint.async_save)."},
    {"checkpoint-rank", "Write in the background: torch.distributed.checkpoint.async_save."},
    {"optimizer",
     "Use a fused optimizer (torch.optim.AdamW(…, fused=True)), or one that updates 1 / ranks of the parameters on each rank (torch.distributed.optim.ZeroRedundancyOptimizer)."},
    {"host-to-device",
     "Copy from page-locked memory while the GPU computes: DataLoader(…, pin_memory=True), batch.to(device, non_blocking=True)."},
    {"long-steps",
     "If these are evaluations, keep them out of the steps: lockstep.begin_step() after each; if their samples are long, set stretch=1 in lockstep.BatchSampler."},
    {"no-phase",
     "Loop over lockstep.batches(loader), and put forward, backward and optimizer into blocks (with lockstep.phase(\"optimizer\"): …)."},
    {"no-tokens", "Say how many there are: lockstep.end_step(tokens=batch.numel())."},
}};

}  // namespace

bool from_python(const Run& run) {
  return std::all_of(run.ranks.begin(), run.ranks.end(),
                     [](const record::Snapshot& rank) { return rank.counters.from_python == 1; });
}

void use_python_remedies(std::vector<Advice>& advice) {
  for (Advice& one : advice) {
    const auto found = std::find_if(kPythonTexts.begin(), kPythonTexts.end(),
                                    [&](const Remedy& remedy) { return remedy.rule == one.rule; });
    if (found != kPythonTexts.end()) one.remedy = found->text;
  }
}

}  // namespace lockstep::report
