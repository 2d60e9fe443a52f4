#include "common/launcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string_view>

#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
  bool binds;  // binds each rank by default
};

constexpr std::array<Launcher, 6> kLaunchers{{
    {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", true},  // Open MPI
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},                        // Hydra: MPICH, Intel MPI
    {"MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", true},    // MVAPICH2
    {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", true},                      // HPE Cray
    {"PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", true},
    {"LOCAL_RANK", "LOCAL_WORLD_SIZE", false},  // torchrun
}};

void check(const char* variable, long rank, long size) {
  if (rank < 0 || size < 1 || rank >= size)
    fail_usage("{}={}: the rank must be below the number of tasks, {}", variable, rank, size);
}

int parse_count(std::string_view text, const std::string& whole) {
  const int value = to_number<int>(text).value_or(0);
  if (value < 1) fail_usage("Slurm's task counts '{}': '{}' is not a count", whole, text);
  return value;
}

// The masks of Slurm's list "0x3,0xc*2", for the tasks of a node in turn.
std::vector<std::string_view> masks_of(std::string_view list) {
  std::vector<std::string_view> masks;
  for (const std::string_view part : split(list, ',')) {
    const auto star = part.find('*');
    const int times = star == std::string_view::npos ? 1 : to_number<int>(part.substr(star + 1)).value_or(1);
    masks.insert(masks.end(), static_cast<std::size_t>(std::clamp(times, 1, kMaxCpus)), part.substr(0, star));
  }
  return masks;
}

std::optional<LocalRank> from_slurm() {
  const auto number = environment::get_integer("SLURM_LOCALID");
  const auto counts = environment::get("SLURM_STEP_TASKS_PER_NODE");
  if (!number || !counts) return std::nullopt;
  const int tasks = tasks_on_node(*counts, environment::get_integer("SLURM_NODEID").value_or(0));
  check("SLURM_LOCALID", *number, tasks);
  const int rank = static_cast<int>(*number);
  const auto list = environment::get("SLURM_CPU_BIND_LIST");
  if (!list) return LocalRank{rank, tasks, false, rank, tasks};
  // Slurm has bound each task. Those with the same mask share its CPUs.
  const std::vector<std::string_view> masks = masks_of(*list);
  const auto mask_of = [&](int task) { return masks[static_cast<std::size_t>(task) % masks.size()]; };
  LocalRank shared{0, 0, false, rank, tasks};
  for (int task = 0; task < tasks; ++task) {
    if (mask_of(task) != mask_of(rank)) continue;
    if (task < rank) ++shared.rank;
    ++shared.size;
  }
  return shared;
}

std::vector<int> cpus_in(const char* variable) {
  const auto list = environment::get(variable);
  return list ? parse_cpu_list(*list) : std::vector<int>();
}

}  // namespace

std::optional<int> mpi_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const auto rank = environment::get_integer(name)) return static_cast<int>(*rank);
  }
  return std::nullopt;
}

void check_that_alone() {
  // A batch script has SLURM_PROCID too, but was not started by srun.
  const auto tasks = environment::get_integer("SLURM_STEP_NUM_TASKS");
  if (environment::get("SLURM_PROCID") && environment::get("SLURM_STEP_ID") && tasks.value_or(1) > 1) {
    fail_usage(
        "srun started {} tasks without PMIx, so they cannot find each other: use srun --mpi=pmix (docs/users/troubleshooting.md)",
        *tasks);
  }
  // Of a batch script or a shell of salloc, and of torchrun.
  for (const char* name : {"SLURM_NTASKS", "WORLD_SIZE"}) {
    const auto ranks = environment::get_integer(name);
    if (ranks.value_or(1) <= 1) continue;
    fmt::print(
        stderr,
        "lockstep: neither srun nor mpirun has started this program, so it trains alone although {}={}: start it with srun --mpi=pmix, or with mpirun (docs/users/ddp.md)\n",
        name, *ranks);
    break;
  }
}

int tasks_on_node(const std::string& counts, long node) {
  for (const std::string_view part : split(counts, ',')) {
    const auto times = part.find("(x");
    const int tasks = parse_count(part.substr(0, times), counts);
    const bool repeated = times != std::string_view::npos && part.back() == ')';
    const int nodes = repeated ? parse_count(part.substr(times + 2, part.size() - times - 3), counts) : 1;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  fail_usage("Slurm's task counts '{}' have no entry for this node", counts);
}

std::optional<LocalRank> find_local_rank() {
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = environment::get_integer(launcher.rank);
    const auto size = environment::get_integer(launcher.size);
    if (!rank || !size) continue;
    check(launcher.rank, *rank, *size);
    const auto local_rank = static_cast<int>(*rank);
    const auto local_size = static_cast<int>(*size);
    return LocalRank{local_rank, local_size, launcher.binds, local_rank, local_size};
  }
  return from_slurm();
}

std::vector<int> worker_cpus() {
  return cpus_in("LOCKSTEP_WORKER_CPUS");
}

std::vector<int> background_cpus() {
  std::vector<int> workers = worker_cpus();
  return workers.empty() ? cpus_in("LOCKSTEP_CPUS") : workers;
}

void use_background_cpus() noexcept {
  try {
    const std::vector<int> cpus = background_cpus();
    if (!cpus.empty()) bind_this_thread(cpus);
  } catch (const std::exception&) {
    // The work is also done where the thread is.
  }
}

}  // namespace lockstep
