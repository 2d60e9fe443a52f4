// The plan: which CPUs, memory and GPUs each task of a job gets on this node, and why. Every rank runs next to its
// memory and its GPU, with an equal share. The rules, in order of importance: shares differ by at most one core; no
// core is split between tasks while there are whole cores for all; a task runs next to its GPU; it does not span NUMA
// nodes, nor, if that costs no core, caches. The same input always gives the same plan.
//
// Threads: pure functions, safe from any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::affinity {

// A compute node as plain data, so that plans can be made and tested for any machine. topology.h fills it from hwloc.

/// A physical core and its place in the machine. CPU numbers are the kernel's (logical OS indices).
struct Core {
  std::vector<int> cpus;  ///< its online hardware threads, also those that are not allowed
  int package = 0;        ///< index, 0…
  int domain = 0;         ///< index into Machine::domains
  int cache = 0;  ///< index, 0…: cores with the same number share their largest cache; or unshared_cache()
  int kind = 0;   ///< 0 for the fastest kind of core; above 0 only on hybrid machines
};

/// Core::cache of all cores of a domain that share no cache.
inline int unshared_cache(int domain) {
  return -1 - domain;
}

/// A NUMA node that has cores.
struct Domain {
  int node = 0;         ///< its number in the kernel
  int memory_node = 0;  ///< where its memory comes from: itself, or the nearest allowed node with memory
  int package = 0;      ///< index, as in Core
};

struct Gpu {
  std::string bus_id;        ///< PCI address, "0000:07:00.0"
  std::vector<int> domains;  ///< indices of the domains that it is attached to; empty if unknown
};

/// A network card: InfiniBand cards, or Ethernet cards if there is none.
struct NetworkCard {
  std::string name;          ///< "mlx5_0", "eth0"
  std::vector<int> domains;  ///< as Gpu::domains
};

/// Cores are sorted by package, then domain, then cache: neighbours in the list are neighbours in the
/// machine.
struct Machine {
  std::string source;  ///< "live", a file's name, or a synthetic description
  std::vector<Core> cores;
  std::vector<Domain> domains;
  std::vector<Gpu> gpus;  ///< in the order of their PCI addresses
  std::vector<NetworkCard> network_cards;
  std::vector<int> allowed;  ///< CPUs that may be used (online, and granted by the cgroup), ascending
  std::vector<int> known;    ///< CPUs that exist, offline and forbidden ones included, ascending
  int packages = 0;
  int caches = 0;
};

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

// placement.cpp distributes the cores by these rules; it does not know how a task uses its cores.

struct PlacementRequest {
  std::size_t tasks = 0;
  std::size_t cores_per_task = 0;  ///< maximum for each
  Policy policy = Policy::automatic;
  std::vector<std::vector<int>> near;  ///< for each task the domains of its GPUs; empty: any
};

/// The cores of one task.
struct TaskCores {
  std::vector<std::vector<int>> cores;  ///< CPUs by core; of a shared core only this task's CPUs
  std::vector<int> domains;             ///< indices of the domains of these cores, ascending
  std::size_t sharers = 1;  ///< tasks on the core, above 1 only when there are more tasks than cores
};

/// `cores` are the usable cores with their usable CPUs, in the machine's order. There must be at least one
/// core and one task.
std::vector<TaskCores> place_tasks(const std::vector<Core>& cores, const PlacementRequest& request);

}  // namespace lockstep::affinity
