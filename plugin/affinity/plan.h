// The plan: which CPUs, memory and GPUs each task of a job gets on this node, and why. Every rank runs next to its
// memory and its GPU, with an equal share. The rules, in order of importance: shares differ by at most one core; no
// core is split between tasks while there are whole cores for all; a task runs next to its GPU; it does not span NUMA
// nodes, nor, if that costs no core, caches. The same input always gives the same plan.
//
// Threads: pure functions, safe from any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plugin/affinity/machine.h"

namespace lockstep::affinity {

enum class Policy {
  automatic,  ///< a share that fits into a NUMA node stays in it; a larger one takes cores in order
  numa,       ///< as automatic, but a larger share consists of whole NUMA nodes
  cache,      ///< the same with the largest shared caches
  core,       ///< equal numbers of neighbouring cores across all borders: leaves the fewest cores idle
  off,        ///< no pinning: every task may run on every allowed CPU
};

enum class Memory {
  local,       ///< the nodes next to the task's CPUs
  interleave,  ///< all nodes next to allowed CPUs
  off,         ///< no nodes
};

/// Reads "auto", "numa", "cache", "core", "off". Throws UsageError with the list of valid values.
Policy parse_policy(std::string_view text);

/// Reads "local", "interleave", "off". Throws UsageError with the list of valid values.
Memory parse_memory(std::string_view text);

struct Request {
  int tasks = 0;            ///< tasks on this node, at least 1
  int cpus_per_task = 0;    ///< maximum for each, loader threads included; 0: share all allowed CPUs
  std::vector<int> within;  ///< only these CPUs; empty: all that the machine allows
  std::vector<int> gpus;    ///< indices into Machine::gpus, distributed to the tasks in this order
  int workers = 0;          ///< CPUs of each task's share that are reserved for loader threads
  int smt = 0;              ///< maximum of hardware threads of a core that compute; 0: all
  Policy policy = Policy::automatic;
  Memory memory = Memory::local;
};

struct TaskPlan {
  int task = 0;                   ///< 0…, the local rank
  std::vector<int> cpus;          ///< for compute, ascending
  std::vector<int> worker_cpus;   ///< for loader threads, ascending; the task's mask is both together
  std::vector<int> numa;          ///< NUMA nodes of the memory, ascending; empty if memory is off
  std::vector<std::string> gpus;  ///< PCI addresses
  int threads = 1;                ///< compute threads to start
  std::string places;             ///< OMP_PLACES, one for each core of `cpus`; "" without pinning
  std::string why;                ///< in words
};

/// One plan per task, in order. Throws UsageError if the request is invalid (no task, a CPU that does not
/// exist), Error if none of the requested CPUs may be used.
std::vector<TaskPlan> make_plan(const Machine& machine, const Request& request);

/// Finds GPUs by a list of PCI addresses ("07:00.0", "0000:07:00.0") or indices in the order of the
/// addresses, or "all". Throws UsageError naming a GPU that does not exist.
std::vector<int> find_gpus(const Machine& machine, const std::string& list);

}  // namespace lockstep::affinity
