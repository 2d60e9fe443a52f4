// Memory that the tasks of a step on one node share: slurmstepd maps it before it forks them. Each task
// records the CPUs that Slurm gave it. The first task that asks does the node's work; the others wait for its
// result. The mapping ends with the last process (and with exec), however the tasks end.
//
// Threads: one object per step, made in slurmstepd; any task's process may call each member.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::spank {

/// Where lockstep-pin puts one task: CPU lists in Linux form, "" for none.
struct TaskPlacement {
  std::string cpus, workers, numa;
  std::string gpus;  ///< PCI addresses
  int threads = 0;
  std::string places;  ///< OMP_PLACES
};

/// How a node's work ended. `killed`: a signal, such as scancel's, cut it short.
enum class WorkResult { pending, succeeded, failed, killed };

/// The longest wait for all tasks to start. It is limited because Slurm may fail to start a task.
inline constexpr int kSecondsForTasks = 10;

class NodeTasks {
 public:
  /// For this many tasks on the node. Throws Error if there is no memory.
  explicit NodeTasks(std::uint32_t tasks);
  ~NodeTasks();
  NodeTasks(const NodeTasks&) = delete;
  NodeTasks& operator=(const NodeTasks&) = delete;

  std::uint32_t size() const;

  /// Records the CPUs that the calling task may run on.
  void record_cpus(std::uint32_t task, const std::vector<int>& cpus);

  /// Records the calling task's GPUs, as a list in any form. Call it before record_cpus().
  void record_gpus(std::uint32_t task, const std::string& gpus);

  /// Runs `work` in the first task that calls this; the others wait for it. Returns the result to all of
  /// them: what `work` returned, or `killed` if its process died.
  WorkResult run_once(const std::function<WorkResult()>& work);

  /// For `work`: waits until every task has recorded its CPUs, for at most `seconds`. Returns all these CPUs,
  /// none if a task did not record them in time.
  std::vector<int> wait_for_cpus(int seconds);

  /// For `work`, after wait_for_cpus(): the GPUs that each task has recorded.
  std::vector<std::string> all_gpus() const;

  /// For `work`: stores the tasks' placements. One that is too long is left out; its task keeps its CPUs.
  void set_placements(const std::vector<TaskPlacement>& placements);

  /// The placement of a task, after run_once(); empty `cpus` if there is none.
  TaskPlacement placement(std::uint32_t task) const;

 private:
  struct Shared;
  struct Slot;
  bool all_recorded() const;
  Shared* shared_;
  Slot* slots_;
  std::size_t bytes_;
};

}  // namespace lockstep::spank
