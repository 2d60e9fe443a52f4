// The verbs of lockstep-stage that only the Slurm plugin calls:
//
//   step        on a node, in the first task of a step: stage_step()
//   rendezvous  beside srun: the rendezvous at which the step's nodes agree
//   recover     at the end of a job: finishes interrupted removals in the user's store, and removes partial
//               copies that are more than a day old
//
// Threads: main's thread.
#pragma once

#include "common/tool.h"

namespace lockstep::transfer {

void add_step_verbs(Tool& tool);

}  // namespace lockstep::transfer
