#include "runtime/comm/launcher.h"

#include "common/environment.h"
#include "common/error.h"
#include "runtime/comm/job_end.h"

namespace lockstep::comm {

Launcher detect_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (environment::get(name)) return Launcher::mpi;
  }
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
    print_line(fmt::format(
        "neither srun nor mpirun has started this program, so it trains alone although {}={}: start it with srun --mpi=pmix, or with mpirun (docs/users/ddp.md)",
        name, *ranks));
    break;
  }
  return Launcher::none;
}

}  // namespace lockstep::comm
