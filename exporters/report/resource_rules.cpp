// The rules on GPUs, memory, processors, and the operators of a profile.
#include <map>
#include <set>

#include "common/nvml.h"
#include "common/process.h"
#include "common/units.h"
#include "exporters/report/rules.h"

namespace lockstep::report {
namespace {

using record::Gpu;
using record::Snapshot;

constexpr double kIdle = 0.30;          // of the time: no kernel ran
constexpr double kMemoryUnused = 0.50;  // of the memory: a larger cap fits
constexpr double kSlowed = 0.10;        // of the time
constexpr std::uint64_t kRetries = 3;   // the first cost little
constexpr double kRetriedSteps = 0.01;  // each waits for the GPU
constexpr std::uint64_t kSteps =
    32;                             // the first steps say little, and their peak is not that of a whole epoch
constexpr double kCpuLimit = 0.90;  // of the processor time that the cgroup allows
constexpr double kSmallCalls = 500;   // operators per step
constexpr double kSmallShare = 0.20;  // of the step
constexpr double kOncePerStep = 0.99;
constexpr double kComputes = 0.50;     // of the step: kernels run
constexpr double kTensorCores = 0.20;  // of the kernels

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

std::string name_of(const Snapshot& rank) {
  return rank_name(rank.identity.rank, rank.identity.node);
}

const char* plural(std::uint64_t count) {
  return count == 1 ? "" : "s";
}

// GPUs that the job has on a node and on which no rank computes.
Found unused_gpus(const Facts& facts, bool all) {
  struct Node {
    std::uint64_t granted = 0;
    std::set<std::array<std::uint64_t, 2>> gpus{};
    std::uint64_t without_uuid = 0;  // ranks on GPUs that NVML does not show
  };
  std::map<std::string, Node> nodes;
  for (const Snapshot& rank : facts.run.ranks) {
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
  const bool complete =
      facts.run.ranks.size() == static_cast<std::size_t>(facts.run.ranks.front().identity.size);
  if (used == granted || (used > 0 && !complete) || all != (used == 0)) return {};
  return say("The job has {} GPU{} and computes on {}.", granted, plural(granted),
             all ? "none of them" : fmt::format("{} of them; {} has unused ones", used, where));
}

// How the job's GPUs are used; none if that is not known, or if it has trained few steps.
struct GpuUse {
  double idle = 1;    // share of the time, of the busiest, so that one slow rank is not the job's fault
  double memory = 0;  // the largest share
  const Snapshot* fullest = nullptr;
};

std::optional<GpuUse> gpu_use(const Facts& facts) {
  GpuUse use;
  for (const Snapshot* rank : ranks_on_gpus(facts.run)) {
    const Gpu& gpu = *gpu_of(*rank);
    if (rank->counters.steps < kSteps || gpu.memory_total_bytes == 0) return {};
    use.idle = std::min(use.idle, gpu.measured_ns == 0 ? 0 : 1 - gpu.busy());
    const double share =
        static_cast<double>(gpu.memory_peak_bytes) / static_cast<double>(gpu.memory_total_bytes);
    if (share >= use.memory) use.fullest = rank;
    use.memory = std::max(use.memory, share);
  }
  return use.fullest != nullptr && facts.found.verdict ? std::optional(use) : std::nullopt;
}

template <Bound Reason>
Found gpu_idle(const Facts& facts) {
  constexpr std::array<const char*, kBounds> kReasons = {
      "between small kernels", "waiting for data", "communication",
      "the host, which launches the work or runs code in no phase", "waiting for slower ranks"};
  const auto use = gpu_use(facts);
  if (!use || use->idle < kIdle || facts.found.verdict->obstacle() != Reason) return {};
  return say("The GPUs are idle for {:.0f} % of the time; the reason is {}.", 100 * use->idle,
             kReasons.at(static_cast<std::size_t>(Reason)));
}

// More work in a step does not help if input or balance bound it, or if the GPU is busy with compute.
Found gpu_memory_unused(const Facts& facts) {
  const auto use = gpu_use(facts);
  if (!use || use->memory > kMemoryUnused || use->fullest->counters.tokens == 0) return {};
  const Bound obstacle = facts.found.verdict->obstacle();
  if (obstacle == Bound::input || obstacle == Bound::imbalance) return {};
  if (obstacle == Bound::compute && use->idle < kIdle) return {};
  const Gpu& gpu = *gpu_of(*use->fullest);
  return say("{} uses at most {} of its GPU's {} ({:.0f} %), more than any other.", name_of(*use->fullest),
             format_bytes(gpu.memory_peak_bytes), format_bytes(gpu.memory_total_bytes), 100 * use->memory);
}

// The allocator has unused memory, but not in one piece.
Found gpu_fragmentation(const Facts& facts) {
  const Snapshot* worst = nullptr;
  for (const Snapshot* rank : ranks_on_gpus(facts.run)) {
    if (worst == nullptr || gpu_of(*rank)->allocator_retries > gpu_of(*worst)->allocator_retries)
      worst = rank;
  }
  if (worst == nullptr) return {};
  const Gpu& gpu = *gpu_of(*worst);
  if (gpu.allocator_retries < kRetries || static_cast<double>(gpu.allocator_retries) <
                                              kRetriedSteps * static_cast<double>(worst->counters.steps)) {
    return {};
  }
  return say(
      "On the GPU of {} LibTorch got no memory {} times in {} steps, and waited for the GPU to free unused blocks; {} of its blocks are unused now.",
      name_of(*worst), gpu.allocator_retries, worst->counters.steps,
      format_bytes(gpu.allocator_unused_bytes));
}

Found gpu_throttled(const Facts& facts) {
  const Snapshot* slowed = nullptr;
  std::size_t count = 0;
  for (const Snapshot* rank : ranks_on_gpus(facts.run)) {
    const Gpu& gpu = *gpu_of(*rank);
    if (gpu.slowed() < kSlowed) continue;
    ++count;
    if (slowed == nullptr || gpu.slowed() > gpu_of(*slowed)->slowed()) slowed = rank;
  }
  if (slowed == nullptr) return {};
  const Gpu& gpu = *gpu_of(*slowed);
  const char* cause = (gpu.throttle_reasons & nvml::kPowerBrake) != 0 ? "the power supply" : "its hardware";
  if ((gpu.throttle_reasons & (nvml::kSoftwareThermal | nvml::kHardwareThermal)) != 0) cause = "heat";
  return Finding{
      fmt::format(
          "The GPU of {} ran {:.0f} % of the time with lower clocks because of {} ({} of {} MHz now{}).",
          name_of(*slowed), 100 * gpu.slowed(), cause, gpu.sm_mhz, gpu.sm_max_mhz,
          count == 1 ? "" : fmt::format("; {} GPUs in all", count)),
      {record::uuid_text(gpu), slowed->identity.node}};
}

// The first rank whose GPU has such a number.
Found gpu_errors(const Facts& facts, std::uint64_t Gpu::*errors,
                 Found (*found)(const Snapshot& rank, const Gpu& gpu)) {
  for (const Snapshot* rank : ranks_on_gpus(facts.run)) {
    const Gpu& gpu = rank->resources->gpu;
    if (gpu.*errors != 0) return found(*rank, gpu);
  }
  return {};
}

template <bool OfProgram>
Found gpu_xid(const Facts& facts) {
  return gpu_errors(facts, &Gpu::xid_errors, [](const Snapshot& rank, const Gpu& gpu) -> Found {
    if (nvml::xid_of_program(gpu.last_xid) != OfProgram) return {};
    return Finding{fmt::format("The GPU of {} reported {} critical error{}, the last one with Xid {}.",
                               name_of(rank), gpu.xid_errors, plural(gpu.xid_errors), gpu.last_xid),
                   {record::uuid_text(gpu), rank.identity.node}};
  });
}

Found gpu_ecc(const Facts& facts) {
  return gpu_errors(facts, &Gpu::ecc_uncorrected, [](const Snapshot& rank, const Gpu& gpu) -> Found {
    return Finding{fmt::format("The GPU of {} has {} error{} of its memory that could not be corrected.",
                               name_of(rank), gpu.ecc_uncorrected, plural(gpu.ecc_uncorrected)),
                   {record::uuid_text(gpu), rank.identity.node}};
  });
}

Found memory_full(const Facts& facts) {
  const std::vector<MemoryUse>& uses = facts.found.memory;
  if (uses.empty() || !is_full(uses.front())) return {};
  return say("{}: {}.", uses.front().died ? "Out of memory" : "Memory is nearly full", to_text(uses.front()));
}

Found memory_unused(const Facts& facts) {
  const std::vector<MemoryUse>& uses = facts.found.memory;
  if (uses.empty() || uses.front().share() > kMemoryUnused || !facts.found.verdict) return {};
  const bool fits = std::all_of(facts.run.ranks.begin(), facts.run.ranks.end(), [](const Snapshot& rank) {
    return rank.counters.tokens > 0 && rank.counters.steps >= kSteps && rank.resources &&
           rank.resources->on_device == 0;
  });
  const Bound obstacle = facts.found.verdict->obstacle();
  if (!fits || (obstacle != Bound::communication && obstacle != Bound::host)) return {};
  return say("Memory is not used: {}, and each step has little work for its {}.", to_text(uses.front()),
             obstacle == Bound::host ? "launching" : "communication");
}

Found cpu_limit(const Facts& facts) {
  struct Node {
    double used = 0;
    double largest = 0;
    double limit = 0;
  };
  std::map<std::string, Node> nodes;
  for (const Snapshot& rank : facts.run.ranks) {
    if (!rank.resources || rank.resources->cpu_limit <= 0) continue;
    Node& node = nodes[rank.identity.node];
    node.limit = rank.resources->cpu_limit;
    node.used += cpus_used(rank);
    node.largest = std::max(node.largest, cpus_used(rank));
  }
  for (const auto& [name, node] : nodes) {
    // More than the limit together: then each rank has a cgroup and a limit of its own.
    const double used = node.used > 1.1 * node.limit ? node.largest : node.used;
    if (used < kCpuLimit * node.limit) continue;
    return say("The job's cgroup on {} allows {:.2f} CPUs, and the ranks use {:.2f} of them.", name,
               node.limit, used);
  }
  return {};
}

using Faults = std::vector<Profile::Fault>;

double calls_of(const Faults& faults) {
  double calls = 0;
  for (const Profile::Fault& fault : faults) calls += fault.calls;
  return calls;
}

// "aten::item 3 times, aten::nonzero once"; three at most, by frequency.
std::string list(Faults faults) {
  std::stable_sort(faults.begin(), faults.end(),
                   [](const auto& a, const auto& b) { return a.calls > b.calls; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(faults.size(), 3); ++i) {
    const double calls = std::max(1.0, faults[i].calls);
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", faults[i].name,
                        calls < 1.5 ? "once" : fmt::format("{:.0f} times", calls));
  }
  return text;
}

// The faults of the profile, if there is one in each step.
Found in_each_step(const Facts& facts, Faults Profile::*faults, Found (*found)(const Faults& faults)) {
  const auto& profile = facts.run.profile;
  if (!profile || calls_of(*profile.*faults) < kOncePerStep) return {};
  return found(*profile.*faults);
}

Found small_operators(const Facts& facts) {
  if (!facts.run.profile) return {};
  const Profile& profile = *facts.run.profile;
  if (profile.small.calls < kSmallCalls || profile.small_ms < kSmallShare * profile.step_ms) return {};
  return say(
      "The profile has {:.0f} operators of less than 10 µs in each step; they take {:.0f} % of it. The most frequent one is {}.",
      profile.small.calls, 100 * profile.small_ms / profile.step_ms, profile.small.name);
}

Found host_copies(const Faults& faults) {
  double bytes = 0;
  for (const Profile::Fault& fault : faults) bytes += fault.bytes;
  return say(
      "The profile's forward makes tensors on the CPU and copies them to the device: {} in each step, {}.",
      list(faults), format_bytes(static_cast<std::uint64_t>(bytes)));
}

Found no_tensor_cores(const Facts& facts) {
  if (!facts.run.profile) return {};
  const Profile::Device& device = facts.run.profile->device;
  if (device.kernels.empty() || device.computing_ms < kComputes * facts.run.profile->step_ms ||
      device.tensor_cores_ms >= kTensorCores * device.computing_ms) {
    return {};
  }
  return say(
      "The profile's GPU computes for {:.0f} % of the step, but only {:.0f} % of that in kernels that use tensor cores. Most time takes {}.",
      100 * device.computing_ms / facts.run.profile->step_ms,
      100 * device.tensor_cores_ms / device.computing_ms, device.kernels.front().name);
}

constexpr auto kResourceRules = std::to_array<Rule>(
    {{"gpu-unused", Bound::compute, [](const Facts& facts) { return unused_gpus(facts, true); },
      "Move the model to a GPU, with a LibTorch for CUDA (model->to(torch::Device(torch::kCUDA, world.local_rank()))), or ask for none (sbatch without --gpus)."},
     {"gpu-unused", Bound::compute, [](const Facts& facts) { return unused_gpus(facts, false); },
      "Start one rank for each GPU (srun --ntasks-per-node), or ask for fewer (sbatch --gpus-per-node)."},
     {"gpu-idle", kNone, gpu_idle<Bound::compute>,
      "Give each step more work (a larger plan.cap), and profile it for small kernels and waits for the GPU (LOCKSTEP_PROFILE)."},
     {"gpu-idle", kNone, gpu_idle<Bound::input>,
      "Give the loader more workers (#SBATCH --pin=auto,workers=4), and let it copy batches ahead (LoaderOptions{.device = …})."},
     {"gpu-idle", kNone, gpu_idle<Bound::communication>,
      "Give each step more work: plan.accumulate = 4, or a larger plan.cap."},
     {"gpu-idle", kNone, gpu_idle<Bound::host>,
      "Give each step more work (a larger plan.cap), read the loss once in many steps, and keep other code out of the steps."},
     {"gpu-idle", kNone, gpu_idle<Bound::imbalance>,
      "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…}))."},
     {"gpu-memory-unused", kNone, gpu_memory_unused,
      "A larger plan.cap fits and makes launching and communication smaller for each token; lockstep::find_largest_cap finds it before the training begins."},
     {"gpu-fragmentation", kNone, gpu_fragmentation,
      "Let blocks grow (export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; its newer name is PYTORCH_ALLOC_CONF), give batches few shapes (plan.padded = true with a larger plan.pad_multiple, such as 64), or lower plan.cap a little."},
     {"gpu-throttled", Bound::compute, gpu_throttled,
      "All ranks wait for it: report {} to the administrator (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), or leave the node out (sbatch --exclude={})."},
     {"gpu-xid", kNone, gpu_xid<true>,
      "Look for the kernel that accesses wrong memory: compute-sanitizer PROGRAM, or CUDA_LAUNCH_BLOCKING=1."},
     {"gpu-xid", kNone, gpu_xid<false>,
      "Report {} to the administrator (dmesg | grep Xid), and leave the node out (sbatch --exclude={})."},
     {"gpu-ecc", kNone, gpu_ecc,
      "Check the loss and the last checkpoint, report {} to the administrator (nvidia-smi -q -d ECC), and leave the node out (sbatch --exclude={})."},
     {"memory-full", kNone, memory_full,
      "Lower plan.cap or the loader's bytes_ahead, recompute activations (lockstep::activation_checkpoint), or ask for more memory (sbatch --mem)."},
     {"memory-unused", kNone, memory_unused,
      "A larger plan.cap fits; lockstep::find_largest_cap finds it before the training begins."},
     {"cpu-limit", Bound::compute, cpu_limit,
      "Ask for more CPUs (sbatch --cpus-per-task; in a container its CPU limit), or start fewer ranks or threads."},
     {"small-operators", kNone, small_operators,
      "Replace the loop that calls them by one operation on a larger tensor (torch::stack, torch::bmm, torch::cumsum)."},
     {"host-copies", kNone,
      [](const Facts& facts) { return in_each_step(facts, &Profile::host_copies, host_copies); },
      "Make them on the device (torch::arange(n, tokens.options())), and constants once, as buffers of the module (register_buffer)."},
     {"device-waits", kNone,
      [](const Facts& facts) {
        return in_each_step(facts, &Profile::device_waits, [](const Faults& faults) {
          return say("The profile's program waits for the device in each step: {}.", list(faults));
        });
      },
      "Read the loss once in many steps (if (step % 100 == 0) loss.item<float>()), and replace indices by masks (torch::where); lockstep::SyncDetector finds the calls."},
     {"autotuned-again", kNone,
      [](const Facts& facts) {
        return in_each_step(facts, &Profile::tuned_again, [](const Faults& faults) {
          return say(
              "cuDNN's autotuner measured its algorithms for {:.0f} convolutions with new shapes in each step of the profile.",
              calls_of(faults));
        });
      },
      "Switch it off (the setting cudnn_benchmark), or give batches few shapes (plan.padded = true with a larger plan.pad_multiple, such as 64)."},
     {"no-tensor-cores", kNone, no_tensor_cores,
      "Train in bfloat16 (lockstep::Autocast) or with the setting matmul_precision = high, make dimensions multiples of 8, and join small operations on elements into few (a fused optimizer, scaled_dot_product_attention)."},
     {"half-sums", kNone,
      [](const Facts& facts) {
        const auto& profile = facts.run.profile;
        if (!profile || profile->half_sums.empty()) return Found();
        return say("The profile's sums are rounded to 3 digits or less: {}.", list(profile->half_sums));
      },
      "Sum in float: sum(torch::kFloat), mean(torch::kFloat)."}});

}  // namespace

std::span<const Rule> resource_rules() {
  return kResourceRules;
}

}  // namespace lockstep::report
