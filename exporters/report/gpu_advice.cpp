#include "exporters/report/gpu_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/nvml.h"
#include "common/process.h"
#include "common/units.h"

namespace lockstep::report {
namespace {

using record::Gpu;
using record::Identity;
using record::Snapshot;

constexpr double kIdle = 0.30;          // of the time: no kernel ran
constexpr double kMemoryUnused = 0.50;  // of the memory: a larger cap fits
constexpr double kSlowed = 0.10;        // of the time
constexpr std::uint64_t kRetries = 3;   // the first cost little
constexpr double kRetriedSteps = 0.01;  // each waits for the GPU
constexpr std::uint64_t kSteps = 32;    // the first steps say little

// The rank's GPU; null without one.
const Gpu* gpu_of(const Snapshot& rank) {
  return rank.resources && rank.resources->gpu.sampled() ? &rank.resources->gpu : nullptr;
}

std::vector<const Snapshot*> ranks_on_gpus(const Run& run) {
  std::vector<const Snapshot*> ranks;
  for (const Snapshot& rank : run.ranks) {
    if (gpu_of(rank) != nullptr) ranks.push_back(&rank);
  }
  return ranks;
}

// GPUs that the job has on a node and on which no rank computes.
void advise_on_unused(const Run& run, std::vector<Advice>& advice) {
  struct Node {
    std::uint64_t granted = 0;
    std::set<std::array<std::uint64_t, 2>> gpus{};
    std::uint64_t without_uuid = 0;  // ranks on GPUs that NVML does not show
  };
  std::map<std::string, Node> nodes;
  for (const Snapshot& rank : run.ranks) {
    if (!rank.resources) continue;
    Node& node = nodes[rank.identity.node];
    node.granted = std::max(node.granted, rank.resources->gpu.granted);
    if (const Gpu* gpu = gpu_of(rank)) {
      node.gpus.insert(gpu->uuid);
    } else {
      node.without_uuid += rank.resources->on_device;
    }
  }
  std::uint64_t granted = 0;
  std::uint64_t used = 0;
  std::string where;
  for (const auto& [name, node] : nodes) {
    const std::uint64_t in_use = std::min(node.granted, node.gpus.size() + node.without_uuid);
    granted += node.granted;
    used += in_use;
    if (in_use < node.granted && where.empty()) where = name;
  }
  // The ranks whose records are missing may use them.
  const bool complete = run.ranks.size() == static_cast<std::size_t>(run.ranks.front().identity.size);
  if (used == granted || (used > 0 && !complete)) return;
  advice.push_back(
      {"gpu-unused",
       fmt::format("The job has {} GPU{} and computes on {}.", granted, granted == 1 ? "" : "s",
                   used == 0 ? "none of them" : fmt::format("{} of them; {} has unused ones", used, where)),
       used == 0
           ? "Move the model to a GPU, with a LibTorch for CUDA (model->to(torch::Device(torch::kCUDA, world.local_rank()))), or ask for none (sbatch without --gpus)."
           : "Start one rank for each GPU (srun --ntasks-per-node), or ask for fewer (sbatch --gpus-per-node)."});
}

constexpr std::array<const char*, kBounds> kReasons = {
    "between small kernels", "waiting for data", "communication",
    "the host, which launches the work or runs code in no phase", "waiting for slower ranks"};
constexpr std::array<const char*, kBounds> kIdleRemedies = {
    "Give each step more work (a larger plan.cap), and profile it for small kernels and waits for the GPU (LOCKSTEP_PROFILE).",
    "Give the loader more workers (#SBATCH --pin=auto,workers=4), and let it copy batches ahead (LoaderOptions{.device = …}).",
    "Give each step more work: plan.accumulate = 4, or a larger plan.cap.",
    "Give each step more work (a larger plan.cap), read the loss once in many steps, and keep other code out of the steps.",
    "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…})).",
};

void advise_on_use(const Run& run, const std::optional<Verdict>& verdict, std::vector<Advice>& advice) {
  const std::vector<const Snapshot*> ranks = ranks_on_gpus(run);
  if (ranks.empty() || std::any_of(ranks.begin(), ranks.end(),
                                   [](const Snapshot* rank) { return rank->counters.steps < kSteps; })) {
    return;
  }
  double idle = 1;  // of the busiest, so that one slow rank is not the job's fault
  double memory = 0;
  const Snapshot* fullest = nullptr;
  for (const Snapshot* rank : ranks) {
    const Gpu& gpu = *gpu_of(*rank);
    idle = std::min(idle, gpu.measured_ns == 0 ? 0 : 1 - gpu.busy());
    if (gpu.memory_total_bytes == 0) return;
    const double share =
        static_cast<double>(gpu.memory_peak_bytes) / static_cast<double>(gpu.memory_total_bytes);
    if (share >= memory) fullest = rank;
    memory = std::max(memory, share);
  }
  if (!verdict) return;
  const Bound obstacle = verdict->obstacle();
  const auto reason = static_cast<std::size_t>(obstacle);
  if (idle >= kIdle) {
    advice.push_back({"gpu-idle",
                      fmt::format("The GPUs are idle for {:.0f} % of the time; the reason is {}.", 100 * idle,
                                  kReasons.at(reason)),
                      kIdleRemedies.at(reason)});
  }
  // More work in a step does not help if input or balance bound it, or if the GPU is busy with compute.
  const bool helps = obstacle == Bound::communication || obstacle == Bound::host ||
                     (obstacle == Bound::compute && idle >= kIdle);
  if (!helps || memory > kMemoryUnused || fullest->counters.tokens == 0) return;
  const Gpu& gpu = *gpu_of(*fullest);
  advice.push_back(
      {"gpu-memory-unused",
       fmt::format("{} uses at most {} of its GPU's {} ({:.0f} %), more than any other.",
                   rank_name(fullest->identity.rank, fullest->identity.node),
                   format_bytes(gpu.memory_peak_bytes), format_bytes(gpu.memory_total_bytes), 100 * memory),
       "A larger plan.cap fits and makes launching and communication smaller for each token; lockstep::memory_warm_up tries it before the training begins."});
}

// The allocator has unused memory, but not in one piece.
void advise_on_fragments(const Run& run, std::vector<Advice>& advice) {
  const Snapshot* worst = nullptr;
  for (const Snapshot* rank : ranks_on_gpus(run)) {
    if (worst == nullptr || gpu_of(*rank)->allocator_retries > gpu_of(*worst)->allocator_retries)
      worst = rank;
  }
  if (worst == nullptr) return;
  const Gpu& gpu = *gpu_of(*worst);
  if (gpu.allocator_retries < kRetries || static_cast<double>(gpu.allocator_retries) <
                                              kRetriedSteps * static_cast<double>(worst->counters.steps)) {
    return;
  }
  advice.push_back(
      {"gpu-fragmentation",
       fmt::format(
           "On the GPU of {} LibTorch got no memory {} times in {} steps, and waited for the GPU to free unused blocks; {} of its blocks are unused now.",
           rank_name(worst->identity.rank, worst->identity.node), gpu.allocator_retries,
           worst->counters.steps, format_bytes(gpu.allocator_unused_bytes)),
       "Let blocks grow (export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), give batches few shapes (plan.fixed_shape, plan.pad_multiple), or lower plan.cap a little."});
}

std::string slowdown(const Gpu& gpu) {
  if ((gpu.throttle_reasons & (nvml::kSoftwareThermal | nvml::kHardwareThermal)) != 0) return "heat";
  return (gpu.throttle_reasons & nvml::kPowerBrake) != 0 ? "the power supply" : "its hardware";
}

void advise_on_faults(const Run& run, std::vector<Advice>& advice) {
  const Snapshot* slowed = nullptr;
  std::size_t count = 0;
  for (const Snapshot* rank : ranks_on_gpus(run)) {
    const Gpu& gpu = *gpu_of(*rank);
    if (gpu.slowed() < kSlowed) continue;
    ++count;
    if (slowed == nullptr || gpu.slowed() > gpu_of(*slowed)->slowed()) slowed = rank;
  }
  if (slowed != nullptr) {
    const Gpu& gpu = *gpu_of(*slowed);
    advice.push_back(
        {"gpu-throttled",
         fmt::format(
             "The GPU of {} ran {:.0f} % of the time with lower clocks because of {} ({} of {} MHz now{}).",
             rank_name(slowed->identity.rank, slowed->identity.node), 100 * gpu.slowed(), slowdown(gpu),
             gpu.sm_mhz, gpu.sm_max_mhz, count == 1 ? "" : fmt::format("; {} GPUs in all", count)),
         fmt::format(
             "All ranks wait for it: report {} to the administrator (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), or leave the node out (sbatch --exclude={}).",
             record::uuid_text(gpu), slowed->identity.node)});
  }
  for (const Snapshot* rank : ranks_on_gpus(run)) {
    const Gpu& gpu = *gpu_of(*rank);
    if (gpu.xid_errors == 0) continue;
    const Identity& identity = rank->identity;
    advice.push_back(
        {"gpu-xid",
         fmt::format("The GPU of {} reported {} critical error{}, the last one with Xid {}.",
                     rank_name(identity.rank, identity.node), gpu.xid_errors, gpu.xid_errors == 1 ? "" : "s",
                     gpu.last_xid),
         nvml::xid_of_program(gpu.last_xid)
             ? "Look for the kernel that accesses wrong memory: compute-sanitizer PROGRAM, or CUDA_LAUNCH_BLOCKING=1."
             : fmt::format(
                   "Report {} to the administrator (dmesg | grep Xid), and leave the node out (sbatch --exclude={}).",
                   record::uuid_text(gpu), identity.node)});
    break;
  }
  for (const Snapshot* rank : ranks_on_gpus(run)) {
    const Gpu& gpu = *gpu_of(*rank);
    if (gpu.ecc_uncorrected == 0) continue;
    advice.push_back(
        {"gpu-ecc",
         fmt::format("The GPU of {} has {} error{} of its memory that could not be corrected.",
                     rank_name(rank->identity.rank, rank->identity.node), gpu.ecc_uncorrected,
                     gpu.ecc_uncorrected == 1 ? "" : "s"),
         fmt::format(
             "Check the loss and the last checkpoint, report {} to the administrator (nvidia-smi -q -d ECC), and leave the node out (sbatch --exclude={}).",
             record::uuid_text(gpu), rank->identity.node)});
    return;
  }
}

}  // namespace

void add_gpu_advice(const Run& run, Findings& found) {
  advise_on_unused(run, found.advice);
  advise_on_use(run, found.verdict, found.advice);
  advise_on_fragments(run, found.advice);
  advise_on_faults(run, found.advice);
}

}  // namespace lockstep::report
