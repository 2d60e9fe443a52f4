// A compute node as plain data (cores, memory, caches, GPUs), so that plans can be made and tested for any machine.
// topology.h fills it from hwloc.
//
// Threads: values, no shared state.
#pragma once

#include <string>
#include <vector>

namespace lockstep::affinity {

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

}  // namespace lockstep::affinity
