#include "plugin/affinity/topology.h"

#include <fmt/ranges.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>

#include "common/error.h"

namespace lockstep::affinity {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

Handle prepare(Devices devices) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) fail_errno("hwloc cannot start");
  Handle handle(topology);
  // CPUs that the cgroup forbids stay in the tree, so that GPUs and distances are right. find_usable() in
  // plan.cpp removes them.
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (devices == Devices::find)
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return handle;
}

std::vector<int> to_list(hwloc_const_bitmap_t set) {
  std::vector<int> list;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) list.push_back(i);
  return list;
}

std::vector<hwloc_obj_t> objects(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> found;
  for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(topology, type, o)) != nullptr;)
    found.push_back(o);
  return found;
}

// Numbers things 0, 1, … in the order in which they are first seen.
class Numbering {
 public:
  int of(const void* thing) {
    return numbers_.try_emplace(thing, static_cast<int>(numbers_.size())).first->second;
  }
  int size() const { return static_cast<int>(numbers_.size()); }

 private:
  std::map<const void*, int> numbers_;
};

// Reads one loaded topology into a Machine.
class TopologyReader {
 public:
  explicit TopologyReader(hwloc_topology_t topology) : topology_(topology) {
    nodes_ = objects(topology, HWLOC_OBJ_NUMANODE);
    // By number: hwloc's own order depends on which CPUs are there.
    std::sort(nodes_.begin(), nodes_.end(),
              [](hwloc_obj_t a, hwloc_obj_t b) { return a->os_index < b->os_index; });
    for (const hwloc_obj_t node : nodes_) any_memory_ = any_memory_ || node->attr->numanode.local_memory > 0;
  }

  Machine machine(std::string source) {
    Machine machine;
    machine.source = std::move(source);
    machine.allowed = to_list(hwloc_topology_get_allowed_cpuset(topology_));
    machine.known = to_list(hwloc_topology_get_complete_cpuset(topology_));
    read_cores(machine);
    read_gpus(machine);
    read_network_cards(machine);
    machine.packages = packages_.size();
    machine.caches = caches_.size();
    return machine;
  }

 private:
  void read_cores(Machine& machine) {
    std::map<hwloc_obj_t, std::size_t> seen;  // core (or lone CPU) -> index
    for (const hwloc_obj_t pu : objects(topology_, HWLOC_OBJ_PU)) {
      const hwloc_obj_t above = hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_CORE, pu);
      const hwloc_obj_t core = above != nullptr ? above : pu;
      const auto [at, is_new] = seen.try_emplace(core, machine.cores.size());
      if (is_new) machine.cores.push_back(read_core(machine, core));
      machine.cores[at->second].cpus.push_back(static_cast<int>(pu->os_index));
    }
    rank_kinds(machine);
    const auto place = [](const Core& core) { return std::tuple(core.package, core.domain, core.cache); };
    std::stable_sort(machine.cores.begin(), machine.cores.end(),
                     [&](const Core& a, const Core& b) { return place(a) < place(b); });
  }

  Core read_core(Machine& machine, hwloc_obj_t object) {
    Core core;
    core.package = packages_.of(hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, object));
    const std::vector<hwloc_obj_t> near = nodes_near(object->cpuset);
    const std::size_t known = static_cast<std::size_t>(domains_.size());
    core.domain = domains_.of(near.empty() ? nullptr : near.front());
    if (static_cast<std::size_t>(core.domain) == known) {
      const int node = near.empty() ? 0 : static_cast<int>(near.front()->os_index);
      machine.domains.push_back({node, memory_for(near), core.package});
    }
    const void* const cache = largest_shared_cache(object);
    core.cache = cache != nullptr ? caches_.of(cache) : unshared_cache(core.domain);
    core.kind = raw_kind(object);
    return core;
  }

  // The NUMA nodes whose CPUs include these: the closest first, and the lowest number first among equals. HBM
  // and device memory, which have no CPUs, come after the DRAM of the same cores.
  std::vector<hwloc_obj_t> nodes_near(hwloc_const_bitmap_t cpus) const {
    std::vector<hwloc_obj_t> near;
    for (const hwloc_obj_t node : nodes_) {
      if (hwloc_bitmap_isincluded(cpus, node->cpuset) != 0) near.push_back(node);
    }
    const auto key = [](hwloc_obj_t node) {
      return std::pair(hwloc_bitmap_weight(node->cpuset), node->os_index);
    };
    std::sort(near.begin(), near.end(), [&](hwloc_obj_t a, hwloc_obj_t b) { return key(a) < key(b); });
    return near;
  }

  bool has_memory(hwloc_obj_t node) const {
    const bool allowed =
        hwloc_bitmap_isset(hwloc_topology_get_allowed_nodeset(topology_), node->os_index) != 0;
    return allowed && (!any_memory_ || node->attr->numanode.local_memory > 0);
  }

  int memory_for(const std::vector<hwloc_obj_t>& near) const {
    for (const hwloc_obj_t node : near) {
      if (has_memory(node)) return static_cast<int>(node->os_index);
    }
    hwloc_obj_t best = nullptr;
    for (const hwloc_obj_t node : nodes_) {
      if (!has_memory(node)) continue;
      if (best == nullptr || distance(near, node) < distance(near, best)) best = node;
    }
    return best != nullptr ? static_cast<int>(best->os_index) : 0;
  }

  // The latency that the machine reports, or else 0 within a package and 1 to another.
  double distance(const std::vector<hwloc_obj_t>& near, hwloc_obj_t to) const {
    if (near.empty()) return 0;
    hwloc_distances_s* matrix = nullptr;
    unsigned count = 1;
    if (hwloc_distances_get_by_type(topology_, HWLOC_OBJ_NUMANODE, &count, &matrix,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) == 0 &&
        count > 0) {
      hwloc_uint64_t forth = 0;
      hwloc_uint64_t back = 0;
      const int found = hwloc_distances_obj_pair_values(matrix, near.front(), to, &forth, &back);
      hwloc_distances_release(topology_, matrix);
      if (found == 0) return static_cast<double>(forth);
    }
    const auto package = [&](hwloc_obj_t node) {
      return hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, node);
    };
    return package(near.front()) == package(to) ? 0 : 1;
  }

  // The largest cache that several cores share; null if there is none.
  const void* largest_shared_cache(hwloc_obj_t core) const {
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
      const hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(topology_, type, core);
      if (cache != nullptr && hwloc_bitmap_isequal(cache->cpuset, core->cpuset) == 0) return cache;
    }
    return nullptr;
  }

  // Kinds by type ("IntelAtom") or capacity, not by clock: some cores of one kind boost higher.
  int raw_kind(hwloc_obj_t core) {
    const int index = hwloc_cpukinds_get_by_cpuset(topology_, core->cpuset, 0);
    unsigned count = 0;
    hwloc_info_s* infos = nullptr;
    if (index < 0 || hwloc_cpukinds_get_info(topology_, static_cast<unsigned>(index), nullptr, nullptr,
                                             &count, &infos, 0) != 0) {
      return 0;
    }
    for (unsigned i = 0; i < count; ++i) {
      const std::string name = infos[i].name;
      if (name == "CoreType") return std::string(infos[i].value) == "IntelAtom" ? 1 : 0;
      if (name == "LinuxCapacity") return -std::atoi(infos[i].value);
    }
    return 0;
  }

  // Numbers the kinds 0, 1, …, the fastest first.
  static void rank_kinds(Machine& machine) {
    std::vector<int> kinds;
    for (const Core& core : machine.cores) kinds.push_back(core.kind);
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
    for (Core& core : machine.cores) {
      core.kind = static_cast<int>(std::lower_bound(kinds.begin(), kinds.end(), core.kind) - kinds.begin());
    }
  }

  void read_gpus(Machine& machine) {
    for (const hwloc_obj_t device : objects(topology_, HWLOC_OBJ_PCI_DEVICE)) {
      if (!is_gpu(device)) continue;
      const auto& at = device->attr->pcidev;
      machine.gpus.push_back({fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.dev, at.func),
                              domains_of(machine, device)});
    }
    std::sort(machine.gpus.begin(), machine.gpus.end(),
              [](const Gpu& a, const Gpu& b) { return a.bus_id < b.bus_id; });
  }

  void read_network_cards(Machine& machine) {
    for (const auto type : {HWLOC_OBJ_OSDEV_OPENFABRICS, HWLOC_OBJ_OSDEV_NETWORK}) {
      for (const hwloc_obj_t card : objects(topology_, HWLOC_OBJ_OS_DEVICE)) {
        if (card->attr->osdev.type != type || card->parent->type != HWLOC_OBJ_PCI_DEVICE) continue;
        machine.network_cards.push_back({card->name, domains_of(machine, card)});
      }
      if (!machine.network_cards.empty()) return;
    }
  }

  // Empty if the device is attached to all domains: it is not near a particular one.
  std::vector<int> domains_of(const Machine& machine, hwloc_obj_t device) const {
    const hwloc_obj_t host = hwloc_get_non_io_ancestor_obj(topology_, device);
    std::vector<int> domains;
    for (std::size_t d = 0; d < machine.domains.size(); ++d) {
      const bool near = std::any_of(machine.cores.begin(), machine.cores.end(), [&](const Core& core) {
        return core.domain == static_cast<int>(d) &&
               hwloc_bitmap_isset(host->cpuset, static_cast<unsigned>(core.cpus.front())) != 0;
      });
      if (near) domains.push_back(static_cast<int>(d));
    }
    if (machine.domains.size() > 1 && domains.size() == machine.domains.size()) domains.clear();
    return domains;
  }

  static bool is_gpu(hwloc_obj_t device) {
    for (hwloc_obj_t child = device->io_first_child; child != nullptr; child = child->next_sibling) {
      if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC)
        return true;
    }
    const unsigned type = device->attr->pcidev.class_id;
    const unsigned vendor = device->attr->pcidev.vendor_id;
    if (type == 0x0302 || type == 0x0380 || type == 0x1200) return true;  // 3D, display, accelerator
    return type == 0x0300 && (vendor == 0x10de || vendor == 0x1002);  // VGA, but not the board's console chip
  }

  hwloc_topology_t topology_;
  std::vector<hwloc_obj_t> nodes_;
  bool any_memory_ = false;
  Numbering packages_, domains_, caches_;
};

Machine read(hwloc_topology_t topology, std::string source) {
  Machine machine = TopologyReader(topology).machine(std::move(source));
  if (machine.cores.empty()) fail("topology '{}' has no CPU", machine.source);
  return machine;
}

}  // namespace

Machine load_live(Devices devices) {
  const Handle topology = prepare(devices);
  if (hwloc_topology_load(topology.get()) != 0) fail_errno("hwloc cannot read this machine's topology");
  return read(topology.get(), "live");
}

Machine load_description(const std::string& description) {
  const Handle topology = prepare(Devices::find);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(description, ignored)) {
    if (hwloc_topology_set_xml(topology.get(), description.c_str()) != 0 ||
        hwloc_topology_load(topology.get()) != 0) {
      fail("topology file {}: hwloc cannot read it as a topology; write one with lstopo FILE.xml",
           description);
    }
  } else if (hwloc_topology_set_synthetic(topology.get(), description.c_str()) != 0 ||
             hwloc_topology_load(topology.get()) != 0) {
    fail_usage("topology '{}' is neither a file nor a synthetic description such as 'package:2 core:8 pu:2'",
               description);
  }
  return read(topology.get(), description);
}

}  // namespace lockstep::affinity
