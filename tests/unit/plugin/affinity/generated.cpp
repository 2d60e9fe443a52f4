#include "tests/unit/plugin/affinity/generated.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "plugin/affinity/topology.h"

namespace lockstep::affinity {
namespace {

int pick(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<>(low, high)(random);
}

bool chance(std::mt19937& random, double probability) {
  return std::bernoulli_distribution(probability)(random);
}

void must(int result, const char* what) {
  if (result != 0) throw std::runtime_error(std::string("hwloc refuses ") + what);
}

class Bitmap {
 public:
  explicit Bitmap(const std::vector<int>& items) {
    for (const int item : items) hwloc_bitmap_set(set_, static_cast<unsigned>(item));
  }
  ~Bitmap() { hwloc_bitmap_free(set_); }
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;
  operator hwloc_bitmap_t() const { return set_; }  // NOLINT: as hwloc's functions take it

 private:
  hwloc_bitmap_t set_ = hwloc_bitmap_alloc();
};

std::string random_description(std::mt19937& random) {
  constexpr int kMaxCpus = 128;
  int cpus = 1;
  const auto level = [&](const char* name, int most) {
    const int count = std::min(pick(random, 1, most), kMaxCpus / cpus);
    cpus *= count;
    return fmt::format("{}:{} ", name, count);
  };
  constexpr const char* kMemory[] = {"", "[numa] ", "[numa] ",
                                     "[numa] [numa] "};  // the last as nodes with HBM
  std::string text = level("package", 3);
  text += chance(random, 0.3) ? level("numa", 3) : kMemory[pick(random, 0, 3)];
  if (chance(random, 0.6)) text += level("l3", 3);
  if (chance(random, 0.4)) text += level("l2", 3);
  text += level("core", 4);
  text += level("pu", 3);
  text.pop_back();
  // CPU i and CPU i + cores are siblings, as the kernel numbers them, or i and i + 1.
  return chance(random, 0.5) ? text + "(indexes=pu:core)" : text;
}

void add_kinds(hwloc_topology_t topology, std::mt19937& random) {
  const Bitmap fast({});
  const Bitmap slow({});
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    hwloc_bitmap_t kind = chance(random, 0.5) ? fast : slow;
    hwloc_bitmap_or(kind, kind, core->cpuset);
  }
  for (const auto& [set, name] :
       {std::pair<const Bitmap*, const char*>{&fast, "IntelCore"}, {&slow, "IntelAtom"}}) {
    if (hwloc_bitmap_iszero(*set) != 0) continue;
    hwloc_info_s info{const_cast<char*>("CoreType"), const_cast<char*>(name)};
    must(hwloc_cpukinds_register(topology, *set, -1, 1, &info, 0), "a kind of core");
  }
}

std::vector<int> to_list(hwloc_const_bitmap_t set) {
  std::vector<int> list;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) list.push_back(i);
  return list;
}

// Through a file, as `lstopo` writes it for `lockstep-pin plan --topology`.
Machine read(hwloc_topology_t topology) {
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-machine-{}.xml", ::getpid());
  must(hwloc_topology_export_xml(topology, file.c_str(), 0), "to write a topology");
  Machine machine = load_description(file);
  std::filesystem::remove(file);
  return machine;
}

}  // namespace

std::vector<int> some_of(std::mt19937& random, const std::vector<int>& items, double probability) {
  std::vector<int> some;
  for (const int item : items) {
    if (chance(random, probability)) some.push_back(item);
  }
  if (some.empty())
    some.push_back(items[static_cast<std::size_t>(pick(random, 0, static_cast<int>(items.size()) - 1))]);
  return some;
}

GeneratedMachine::GeneratedMachine(std::mt19937& random) : description(random_description(random)) {
  must(hwloc_topology_init(&topology_), "to start");
  hwloc_topology_set_flags(topology_, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  must(hwloc_topology_set_synthetic(topology_, description.c_str()), description.c_str());
  must(hwloc_topology_load(topology_), description.c_str());
  if (chance(random, 0.3)) add_kinds(topology_, random);
  known = to_list(hwloc_topology_get_topology_cpuset(topology_));
  online = chance(random, 0.5) ? known : some_of(random, known, 0.8);
  nodes = to_list(hwloc_topology_get_topology_nodeset(topology_));
  memory_nodes = chance(random, 0.6) ? nodes : some_of(random, nodes, 0.6);
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    const bool has = hwloc_bitmap_isset(Bitmap(memory_nodes), node->os_index) != 0;
    node->attr->numanode.local_memory = has ? 1U << 30U : 0;
  }
  // Leaves nodes whose CPUs are all offline, which have memory alone.
  must(hwloc_topology_restrict(topology_, Bitmap(online), 0), "to take CPUs offline");
  description += fmt::format(", {} of {} CPUs online", online.size(), known.size());
}

Machine GeneratedMachine::whole() const {
  Machine machine = read(topology_);
  machine.known = known;
  return machine;
}

Machine GeneratedMachine::granted(const std::vector<int>& cpus) const {
  hwloc_topology_t copy = nullptr;
  must(hwloc_topology_dup(&copy, topology_), "a copy");
  must(hwloc_topology_allow(copy, Bitmap(cpus), nullptr, HWLOC_ALLOW_FLAG_CUSTOM), "a cgroup");
  Machine machine = read(copy);
  hwloc_topology_destroy(copy);
  return machine;
}

Machine GeneratedMachine::smaller(const std::vector<int>& cpus) const {
  hwloc_topology_t copy = nullptr;
  must(hwloc_topology_dup(&copy, topology_), "a copy");
  must(hwloc_topology_restrict(copy, Bitmap(cpus), 0), "a smaller machine");
  Machine machine = read(copy);
  hwloc_topology_destroy(copy);
  return machine;
}

}  // namespace lockstep::affinity
