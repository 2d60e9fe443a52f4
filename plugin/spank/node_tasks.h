// How the tasks of a step on one node agree: memory that slurmstepd maps before it forks them. Each task
// notes the CPUs that Slurm gave it; the first to ask does the node's work; the others wait for what came
// out. Nothing is left behind when they end, however they end: the mapping goes with the last process (and
// with exec).
//
// Threads: one object per step, made in slurmstepd; each member may be called by any task's process.
#pragma once

#include <sched.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::spank {

/// What lockstep-pin decided for one task: CPU lists in Linux form, "" for none.
struct Placement {
  std::string cpus, workers, numa;
  std::string gpus;  ///< PCI addresses
  int threads = 0;
};

/// How a node's work ended: `killed` where it was cut short by a signal, as scancel's.
enum class Ended { pending, well, badly, killed };

/// A task that Slurm failed to start never comes; the others must not wait for it long.
inline constexpr int kSecondsForTasks = 10;

class NodeTasks {
 public:
  /// For this many tasks on the node. Throws Refusal where there is no memory.
  explicit NodeTasks(std::uint32_t tasks);
  ~NodeTasks();
  NodeTasks(const NodeTasks&) = delete;
  NodeTasks& operator=(const NodeTasks&) = delete;

  std::uint32_t size() const;

  /// Notes the calling task's CPUs, as sched_getaffinity gives them.
  void note_cpus(std::uint32_t task, const cpu_set_t& cpus);

  /// Notes the calling task's GPUs, before its CPUs; a list of any kind.
  void note_gpus(std::uint32_t task, const std::string& gpus);

  /// Runs `work` in the first task that comes here and holds the others until it is done. Tells all of them
  /// how it ended: as `work` returned, or that its process was killed on the way.
  Ended once(const std::function<Ended()>& work);

  /// For `work`: waits until every task has noted its CPUs, for at most `seconds`. Returns the union as a
  /// list,
  /// "" where one did not come.
  std::string all_cpus(int seconds);

  /// For `work`, after all_cpus(): the GPUs that each task has noted.
  std::vector<std::string> all_gpus() const;

  /// For `work`: leaves the tasks' places for them; what does not fit is left out (the task keeps its CPUs).
  void put_placements(const std::vector<Placement>& placements);

  /// The place of a task, after once(); empty `cpus` where there is none.
  Placement placement(std::uint32_t task) const;

 private:
  struct Shared;
  struct Slot;
  bool all_noted() const;
  Shared* shared_;
  Slot* slots_;
  std::size_t bytes_;
};

/// CPU numbers as a Linux list ("0-3,8").
std::string format_cpus(const cpu_set_t& cpus);

/// Reads a Linux list. Throws Refusal where it is none.
cpu_set_t parse_cpus(const std::string& list);

}  // namespace lockstep::spank
