#include "plugin/affinity/launcher.h"

#include <array>
#include <string_view>

#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/number.h"
#include "common/leaf/split.h"

namespace lockstep::affinity {
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

std::optional<LocalRank> from_slurm() {
  const auto rank = environment::get_integer("SLURM_LOCALID");
  const auto counts = environment::get("SLURM_STEP_TASKS_PER_NODE");
  if (!rank || !counts) return std::nullopt;
  // Slurm has bound each task: this task may use its own CPUs only.
  if (environment::get("SLURM_CPU_BIND_LIST")) return LocalRank{0, 1, false};
  const int size = tasks_on_node(*counts, environment::get_integer("SLURM_NODEID").value_or(0));
  check("SLURM_LOCALID", *rank, size);
  return LocalRank{static_cast<int>(*rank), size, false};
}

}  // namespace

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
    return LocalRank{static_cast<int>(*rank), static_cast<int>(*size), launcher.binds};
  }
  return from_slurm();
}

}  // namespace lockstep::affinity
