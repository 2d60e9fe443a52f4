// The callbacks that Slurm finds in lockstep.so. Each calls the function of its context (contexts/context.h) and
// catches its exceptions, which would otherwise end slurmstepd or srun. No callback returns an error: if the plugin is
// `required`, Slurm drains the node after some of them.

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
// Since Slurm 25.05 a failed init drains the node unless the plugin blames the job.
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
int slurm_spank_init_failure_mode = ESPANK_JOB_FAILURE;
#endif
#pragma GCC visibility pop

#include <array>
#include <exception>
#include <stdexcept>
#include <string>

#include "plugin/spank/contexts/context.h"
#include "plugin/spank/process/report.h"

#define LOCKSTEP_EXPANDED_TEXT(number) #number
#define LOCKSTEP_TEXT(number) LOCKSTEP_EXPANDED_TEXT(number)

namespace {

// lockstep-doctor reads it from the file, because only SPANK's symbols are exported.
[[gnu::used]] constexpr char kVersion[] =
    "lockstep.so version " LOCKSTEP_VERSION " " LOCKSTEP_TEXT(SLURM_VERSION_NUMBER);

using namespace lockstep::spank;  // NOLINT: a file of callbacks only

#ifdef LOCKSTEP_TEST_FAULTS
// For tests: the argument fail=CONTEXT:CALLBACK of plugstack.conf makes this callback fail.
void inject_fault(const char* callback, int argc, char** argv) {
  constexpr std::array<const char*, 6> kContexts{"error",     "local",  "remote",
                                                 "allocator", "slurmd", "job_script"};
  const std::string fault = std::string("fail=") + kContexts.at(spank_context()) + ":" + callback;
  for (int i = 0; i < argc; ++i) {
    if (fault == argv[i]) throw std::runtime_error("made to fail");
  }
}
#else
void inject_fault(const char* /*callback*/, int /*argc*/, char** /*argv*/) {
}
#endif

// `failed` gets one line about what happened. It ends this process if the job would otherwise run without its data;
// else it returns.
template <typename Work, typename Failed>
int guarded(const char* callback, int argc, char** argv, const Work& work, const Failed& failed) noexcept {
  try {
    try {
      inject_fault(callback, argc, argv);
      work();
    } catch (const std::exception& error) {
      failed(std::string(callback) + " failed: " + error.what());
    }
  } catch (...) {
    log("an unknown exception");
  }
  return ESPANK_SUCCESS;
}

// The same for a callback whose failure does no harm to the job.
template <typename Work>
int guarded(const char* callback, int argc, char** argv, const Work& work) noexcept {
  return guarded(callback, argc, argv, work, [](const std::string& what) { log(what); });
}

// A failure before the tasks start: sbatch, salloc and srun end if the user needs the plugin; on a node the tasks learn of it.
void failed_before_tasks(const std::string& what) {
  switch (spank_context()) {
    case S_CTX_ALLOCATOR:
    case S_CTX_LOCAL:
      return exit_if_needed(what);
    case S_CTX_REMOTE:
      log(what);
      return remote::refuse(what);
    default:
      return log(what);
  }
}

}  // namespace

extern "C" {

SPANK_PLUGIN(lockstep, 1)

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  const auto work = [&] {
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
  };
  return guarded("init", argc, argv, work, failed_before_tasks);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char** argv) {
  const auto work = [&] {
    switch (spank_context()) {
      case S_CTX_ALLOCATOR:
        return allocator::init_post_opt(spank);
      case S_CTX_LOCAL:
        return local::init_post_opt(spank);
      case S_CTX_REMOTE:
        return remote::init_post_opt(spank, argc, argv);
      default:
        return;
    }
  };
  return guarded("init_post_opt", argc, argv, work, failed_before_tasks);
}

int slurm_spank_local_user_init(spank_t /*spank*/, int argc, char** argv) {
  return guarded("local_user_init", argc, argv, [] { local::user_init(); });
}

int slurm_spank_user_init(spank_t /*spank*/, int argc, char** argv) {
  return guarded(
      "user_init", argc, argv, [] { remote::user_init(); }, failed_before_tasks);
}

int slurm_spank_task_init(spank_t spank, int argc, char** argv) {
  return guarded(
      "task_init", argc, argv, [&] { remote::task_init(spank); },
      [&](const std::string& what) { remote::end_task_if_needed(spank, what); });
}

int slurm_spank_task_exit(spank_t /*spank*/, int argc, char** argv) {
  return guarded("task_exit", argc, argv, [] { remote::task_exit(); });
}

int slurm_spank_exit(spank_t /*spank*/, int argc, char** argv) {
  return guarded("exit", argc, argv, [] {
    if (spank_context() == S_CTX_REMOTE) remote::exit();
  });
}

int slurm_spank_job_epilog(spank_t spank, int argc, char** argv) {
  return guarded("job_epilog", argc, argv, [&] { job_script::epilog(spank, argc, argv); });
}

}  // extern "C"
