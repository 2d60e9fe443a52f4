// lockstep-stage: copies packed data into the node's cache and manages the cache.

#include <sys/stat.h>

#include "common/leaf/open_files.h"
#include "common/tool.h"
#include "staging/step/step.h"
#include "staging/tool/cache_verbs.h"

int main(int argc, char** argv) {
  // A restrictive umask could lock the next call out. Files for other readers get explicit modes.
  ::umask(077);
  lockstep::raise_open_files_limit();  // srun's helper has a connection to each node of the step
  lockstep::Tool tool(
      "lockstep-stage",
      "Copy packed data into this node's cache, verified and shared by the jobs that run here");
  lockstep::transfer::add_put_verb(tool);
  lockstep::transfer::add_cache_verbs(tool);
  lockstep::transfer::add_step_verbs(tool);
  return tool.run(argc, argv);
}
