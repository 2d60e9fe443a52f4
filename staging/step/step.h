// The verbs of lockstep-stage that the Slurm plugin calls; people have no use for them.
//
//   step        on a node, in a step's first task: put the sources, fill the job's folder of names, agree
//   with the
//               step's other nodes, write staging.json beside the records
//   rendezvous  beside srun: where those nodes agree
//   recover     at a job's end: remove what is half removed in the user's store, and half copies of days ago
//
// Threads: main's thread.
#pragma once

#include "common/tool.h"

namespace lockstep::transfer {

void add_step_verbs(Tool& tool);

}  // namespace lockstep::transfer
