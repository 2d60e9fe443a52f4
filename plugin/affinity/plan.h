// The plan: which CPUs, memory and GPUs each task of a job gets on this node, and why. It exists so that
// every rank runs next to its memory and its GPU, with an equal share, without anybody writing masks by hand.
//
// The rules, the first ones first: every task gets an equal share, to within one core; no core is split
// between tasks while there are whole cores for all; a task sits next to its GPU; it does not straddle NUMA
// nodes, nor, where that costs it no core, caches; the same input gives the same plan.
//
// Threads: pure functions, safe from any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plugin/affinity/machine.h"

namespace lockstep::affinity {

enum class Policy {
  automatic,  ///< NUMA nodes are not crossed where a share fits into one; a larger share takes cores in order
  numa,       ///< as automatic, and a larger share is made of whole NUMA nodes
  cache,      ///< the same with the largest shared caches
  core,       ///< equal numbers of neighbouring cores, borders ignored: leaves the fewest cores idle
  off,        ///< no pinning: every task may run on every allowed CPU
};

enum class Memory {
  local,       ///< the nodes next to the task's CPUs
  interleave,  ///< all nodes next to allowed CPUs
  off,         ///< none named
};

/// Reads "auto", "numa", "cache", "core", "off". Throws UsageError with the list of good values.
Policy parse_policy(std::string_view text);

/// Reads "local", "interleave", "off". Throws UsageError with the list of good values.
Memory parse_memory(std::string_view text);

struct Request {
  int tasks = 0;  ///< tasks on this node, at least 1
  int cpus_per_task =
      0;  ///< at most so many CPUs for each, loader threads included; 0: share all that is allowed
  std::vector<int> within;  ///< only these CPUs; empty: all that the machine allows
  std::vector<int> gpus;    ///< indices into Machine::gpus, dealt to the tasks in this order
  int workers = 0;          ///< CPUs of each task's share that are set aside for loader threads
  int smt = 0;              ///< at most so many hardware threads of a core compute; 0: all
  Policy policy = Policy::automatic;
  Memory memory = Memory::local;
};

struct TaskPlan {
  int task = 0;                   ///< 0…, the local rank
  std::vector<int> cpus;          ///< for compute, ascending
  std::vector<int> worker_cpus;   ///< for loader threads, ascending; the task's mask is both together
  std::vector<int> numa;          ///< NUMA nodes to take memory from, ascending; empty where memory is off
  std::vector<std::string> gpus;  ///< PCI addresses
  int threads = 1;                ///< compute threads to start
  std::string why;                ///< in words
};

/// One plan per task, in order. Throws UsageError when the request cannot be right (no task, a CPU that does
/// not exist), Error when nothing that was asked for may be used.
std::vector<TaskPlan> make_plan(const Machine& machine, const Request& request);

/// Finds GPUs by a list of PCI addresses ("07:00.0", "0000:07:00.0") or indices in the order of the
/// addresses, or "all". Throws UsageError naming the one that is not there.
std::vector<int> find_gpus(const Machine& machine, const std::string& list);

}  // namespace lockstep::affinity
