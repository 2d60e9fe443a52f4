// The callbacks that Slurm finds in lockstep.so. Each calls the function of its context (contexts/context.h)
// and catches its exceptions: one that left would end slurmstepd or srun.

// Slurm's header declares the callbacks without extern "C".
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/spank.h>
// C++ constants are private to their file unless they are declared first.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
}
// Since Slurm 25.05 a failed init drains the node, unless the plugin says that the job is at fault.
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
int slurm_spank_init_failure_mode = ESPANK_JOB_FAILURE;
#endif
#pragma GCC visibility pop

#include "plugin/spank/contexts/context.h"
#include "plugin/spank/process/report.h"

#define LOCKSTEP_EXPANDED_TEXT(number) #number
#define LOCKSTEP_TEXT(number) LOCKSTEP_EXPANDED_TEXT(number)

namespace {

// lockstep-doctor reads it from the file, because only SPANK's symbols are exported.
[[gnu::used]] constexpr char kVersion[] =
    "lockstep.so version " LOCKSTEP_VERSION " " LOCKSTEP_TEXT(SLURM_VERSION_NUMBER);

using namespace lockstep::spank;  // NOLINT: a file of callbacks only

template <typename Work>
int guarded(const Work& work) noexcept {
  try {
    work();
    return ESPANK_SUCCESS;
  } catch (const std::exception& error) {
    log(error.what());
  } catch (...) {
    log("an unknown exception");
  }
  return ESPANK_ERROR;
}

}  // namespace

extern "C" {

SPANK_PLUGIN(lockstep, 1)

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  return guarded([&] {
    switch (spank_context()) {
      case S_CTX_ALLOCATOR:
        return allocator::init(spank, argc, argv);
      case S_CTX_LOCAL:
        return local::init(spank, argc, argv);
      case S_CTX_REMOTE:
        return remote::init(spank, argc, argv);
      default:
        return;
    }
  });
}

int slurm_spank_init_post_opt(spank_t spank, int /*argc*/, char** /*argv*/) {
  return guarded([&] {
    switch (spank_context()) {
      case S_CTX_ALLOCATOR:
        return allocator::init_post_opt(spank);
      case S_CTX_LOCAL:
        return local::init_post_opt(spank);
      case S_CTX_REMOTE:
        return remote::init_post_opt(spank);
      default:
        return;
    }
  });
}

int slurm_spank_local_user_init(spank_t /*spank*/, int /*argc*/, char** /*argv*/) {
  return guarded([&] { local::user_init(); });
}

int slurm_spank_user_init(spank_t /*spank*/, int /*argc*/, char** /*argv*/) {
  return guarded([&] { remote::user_init(); });
}

int slurm_spank_task_init(spank_t spank, int /*argc*/, char** /*argv*/) {
  return guarded([&] { remote::task_init(spank); });
}

int slurm_spank_task_exit(spank_t /*spank*/, int /*argc*/, char** /*argv*/) {
  return guarded([&] { remote::task_exit(); });
}

int slurm_spank_exit(spank_t /*spank*/, int /*argc*/, char** /*argv*/) {
  return guarded([&] {
    if (spank_context() == S_CTX_REMOTE) remote::exit();
  });
}

int slurm_spank_job_epilog(spank_t spank, int argc, char** argv) {
  return guarded([&] { job_script::epilog(spank, argc, argv); });
}

}  // extern "C"
