#include "runtime/comm/launcher.h"

#include "common/environment.h"
#include "common/error.h"

namespace lockstep::comm {

Launcher detect_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (environment::get(name)) return Launcher::mpi;
  }
  // A batch script has SLURM_PROCID too, but was not started by srun.
  const auto tasks = environment::get_integer("SLURM_STEP_NUM_TASKS");
  if (environment::get("SLURM_PROCID") && environment::get("SLURM_STEP_ID") && tasks.value_or(1) > 1) {
    fail_usage("srun started {} tasks without PMIx, so they cannot find each other: use srun --mpi=pmix",
               *tasks);
  }
  return Launcher::none;
}

}  // namespace lockstep::comm
