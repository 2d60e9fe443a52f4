#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "plugin/affinity/plan.h"

namespace lockstep::affinity {
namespace {

using Cores = std::vector<const Core*>;
using Tasks = std::vector<std::size_t>;

// Cores that belong together: those of a NUMA node or of a cache.
struct CoreGroup {
  Cores cores;
  int domain = 0;
  int package = 0;
  std::size_t tasks = 0;

  std::size_t size() const { return cores.size(); }
};

// `key` is the member that the cores of a group have in common.
std::vector<CoreGroup> group_by(const Cores& cores, int Core::*key) {
  std::vector<CoreGroup> groups;
  for (const Core* core : cores) {
    if (groups.empty() || groups.back().cores.back()->*key != core->*key)
      groups.push_back({{}, core->domain, core->package});
    groups.back().cores.push_back(core);
  }
  return groups;
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Chooses a group for every task, so that the smallest share is as large as possible.
class Spread {
 public:
  Spread(std::vector<CoreGroup>& groups, const std::vector<std::vector<int>>& near)
      : groups_(groups), near_(near), group_of_(near.size(), groups.size()) {
    for (const CoreGroup& group : groups) packages_[group.package].cores += static_cast<double>(group.size());
  }

  // The tasks of each group.
  std::vector<Tasks> run() {
    // Tasks with few choices come first, and tasks without a wish last: 0 - 1 is the largest number.
    Tasks order(near_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return near_[a].size() - 1 < near_[b].size() - 1; });
    for (const std::size_t task : order) place(task, near_[task]);
    // A task whose domains are full is placed last, so that it takes no core that another task wants.
    for (const std::size_t task : order) {
      if (group_of_[task] == groups_.size()) place(task, {});
    }
    // Among tasks with the same wish, neighbours get neighbouring groups.
    std::map<std::vector<int>, std::multiset<std::size_t>> chosen;
    for (const std::size_t task : order) chosen[near_[task]].insert(group_of_[task]);
    std::vector<Tasks> members(groups_.size());
    for (std::size_t task = 0; task < near_.size(); ++task) {
      std::multiset<std::size_t>& left = chosen[near_[task]];
      members[left.extract(left.begin()).value()].push_back(task);
    }
    return members;
  }

 private:
  struct Package {
    double tasks = 0, cores = 0;
  };

  void place(std::size_t task, const std::vector<int>& wanted) {
    std::size_t best = groups_.size();
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const CoreGroup& group = groups_[g];
      if (group.tasks >= group.size() || !(wanted.empty() || contains(wanted, group.domain))) continue;
      if (best == groups_.size() || is_better(group, groups_[best])) best = g;
    }
    if (best == groups_.size()) return;
    group_of_[task] = best;
    ++groups_[best].tasks;
    ++packages_[groups_[best].package].tasks;
  }

  // Whether a's tasks have more cores each than b's, after one more task. With equal shares, few tasks spread over packages.
  bool is_better(const CoreGroup& a, const CoreGroup& b) {
    const std::size_t left = a.size() * (b.tasks + 1);
    const std::size_t right = b.size() * (a.tasks + 1);
    const auto load = [&](const CoreGroup& group) {
      const Package& package = packages_[group.package];
      return package.tasks / package.cores;
    };
    return left != right ? left > right : load(a) < load(b);
  }

  std::vector<CoreGroup>& groups_;
  const std::vector<std::vector<int>>& near_;  // the wanted domains of each task
  std::vector<std::size_t> group_of_;
  std::map<int, Package> packages_;
};

// The largest share of at most `limit` that lets `count` tasks fit into the groups without crossing a border; 0 if
// there are more tasks than cores.
std::size_t share_within(const std::vector<CoreGroup>& groups, std::size_t count, std::size_t limit) {
  for (std::size_t share = limit; share > 0; --share) {
    std::size_t tasks = 0;
    for (const CoreGroup& group : groups) tasks += group.size() / share;
    if (tasks >= count) return share;
  }
  return 0;
}

class Distribution {
 public:
  Distribution(const Cores& cores, const PlacementRequest& request)
      : cores_(cores), request_(request), result_(request.tasks) {}

  std::vector<TaskCores> run() {
    if (request_.tasks > cores_.size()) {
      share_cores();
    } else {
      whole_cores();
    }
    return std::move(result_);
  }

 private:
  void whole_cores() {
    std::vector<CoreGroup> groups =
        group_by(cores_, request_.policy == Policy::cache ? &Core::cache : &Core::domain);
    std::size_t largest = 0;
    for (const CoreGroup& group : groups) largest = std::max(largest, group.size());
    const std::size_t fair = std::min(cores_.size() / request_.tasks, request_.cores_per_task);
    const bool has_wishes =
        std::any_of(request_.near.begin(), request_.near.end(), [](auto& n) { return !n.empty(); });
    const bool confined = request_.policy != Policy::core && (fair <= largest || has_wishes);
    if (confined) {
      within_groups(groups);
    } else if (request_.policy == Policy::core || request_.policy == Policy::automatic) {
      in_order(cores_, tasks_by_wish(), request_.cores_per_task);
    } else {
      whole_groups(groups);
    }
  }

  // The maximum number of cores for a task if the smallest share is `share`: one more, but at most as requested.
  std::size_t limit(std::size_t share) const { return std::min(request_.cores_per_task, share + 1); }

  void within_groups(std::vector<CoreGroup>& groups) {
    const std::vector<Tasks> members = Spread(groups, request_.near).run();
    std::size_t share = cores_.size();
    for (const CoreGroup& group : groups) {
      if (group.tasks > 0) share = std::min(share, group.size() / group.tasks);
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].tasks > 0) within_group(groups[g], members[g], share);
    }
  }

  // Distributes one NUMA node's cores: cache by cache if every task still gets `share`, otherwise in order.
  void within_group(const CoreGroup& group, const Tasks& tasks, std::size_t share) {
    const bool hybrid = group_kinds(group.cores).size() > 1;
    std::vector<CoreGroup> caches = group_by(group.cores, &Core::cache);
    const std::size_t wanted = std::min(share, request_.cores_per_task);
    if (hybrid || share_within(caches, tasks.size(), wanted) < wanted)
      return in_order(group.cores, tasks, limit(share));
    const std::vector<Tasks> members = Spread(caches, std::vector<std::vector<int>>(tasks.size())).run();
    for (std::size_t c = 0; c < caches.size(); ++c) {
      Tasks of_cache;
      for (const std::size_t i : members[c]) of_cache.push_back(tasks[i]);
      if (!of_cache.empty()) in_order(caches[c].cores, of_cache, limit(share));
    }
  }

  // Gives each task an equal number of whole groups.
  void whole_groups(const std::vector<CoreGroup>& groups) {
    const std::size_t count = request_.tasks;
    std::vector<Cores> shares(count);
    std::size_t smallest = cores_.size();
    for (std::size_t t = 0; t < count; ++t) {
      const std::size_t begin = t * groups.size() / count;
      for (std::size_t g = begin; g < begin + groups.size() / count; ++g)
        shares[t].insert(shares[t].end(), groups[g].cores.begin(), groups[g].cores.end());
      smallest = std::min(smallest, shares[t].size());
    }
    for (std::size_t t = 0; t < count; ++t) in_order(shares[t], {t}, limit(smallest));
  }

  static std::map<int, Cores> group_kinds(const Cores& cores) {
    std::map<int, Cores> kinds;
    for (const Core* core : cores) kinds[core->kind].push_back(core);
    return kinds;
  }

  // Gives neighbouring cores to neighbouring tasks, in shares that are equal to within one core. Each kind of core is
  // distributed separately; its spare cores go to the tasks after those that got the previous kind's.
  void in_order(const Cores& cores, const Tasks& tasks, std::size_t max_cores) {
    std::size_t next_spare = 0;
    std::vector<Cores> shares(tasks.size());
    for (const auto& [kind, of_kind] : group_kinds(cores)) {
      const std::size_t spare = of_kind.size() % tasks.size();
      auto at = of_kind.begin();
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        const bool extra = (t + tasks.size() - next_spare) % tasks.size() < spare;
        const auto end = at + static_cast<std::ptrdiff_t>(of_kind.size() / tasks.size() + (extra ? 1 : 0));
        shares[t].insert(shares[t].end(), at, end);
        at = end;
      }
      next_spare = (next_spare + spare) % tasks.size();
    }
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      shares[t].resize(std::min(shares[t].size(), max_cores));
      for (const Core* core : shares[t]) give(tasks[t], *core, core->cpus, 1);
    }
  }

  // For more tasks than cores: one task for each core, then more on the core with the fewest tasks per
  // thread.
  void share_cores() {
    std::vector<std::size_t> load(cores_.size(), 1);
    for (std::size_t left = request_.tasks - cores_.size(); left > 0; --left) {
      std::size_t best = 0;
      for (std::size_t c = 1; c < cores_.size(); ++c) {
        if (cores_[c]->cpus.size() * (load[best] + 1) > cores_[best]->cpus.size() * (load[c] + 1)) best = c;
      }
      ++load[best];
    }
    std::vector<std::size_t> seats;  // a core for each task
    for (std::size_t c = 0; c < cores_.size(); ++c) seats.insert(seats.end(), load[c], c);
    std::vector<std::size_t> seated(cores_.size(), 0);
    const std::vector<std::size_t> core_of = seat_tasks(seats);
    for (std::size_t task = 0; task < request_.tasks; ++task) {
      const std::size_t c = core_of[task];
      const std::span<const int> cpus(cores_[c]->cpus);
      const std::size_t at = seated[c]++;
      const std::size_t begin = at * cpus.size() / load[c];
      const std::size_t end = std::max(begin + 1, (at + 1) * cpus.size() / load[c]);
      const auto own = cpus.subspan(begin, end - begin);
      give(task, *cores_[c], {own.begin(), own.end()}, load[c]);
    }
  }

  // The core of each task. Tasks with a wish take the first free seat in a wanted domain; the others take the free seats in
  // order.
  std::vector<std::size_t> seat_tasks(const std::vector<std::size_t>& seats) const {
    std::vector<std::size_t> core_of(seats.size(), cores_.size());
    std::vector<bool> taken(seats.size());
    for (const bool wishes : {true, false}) {
      std::map<std::vector<int>, std::size_t> first_free;
      for (std::size_t task = 0; task < seats.size(); ++task) {
        const std::vector<int> wanted = wishes ? request_.near[task] : std::vector<int>();
        if (core_of[task] < cores_.size() || (wishes && wanted.empty())) continue;
        std::size_t& seat = first_free[wanted];
        const auto suits = [&] { return wanted.empty() || contains(wanted, cores_[seats[seat]]->domain); };
        while (seat < seats.size() && (taken[seat] || !suits())) ++seat;
        if (seat == seats.size()) continue;
        taken[seat] = true;
        core_of[task] = seats[seat];
      }
    }
    return core_of;
  }

  // The tasks, ordered by the first core that they want; tasks without a wish last.
  Tasks tasks_by_wish() const {
    Tasks order(request_.tasks);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto wish = [&](std::size_t task) {
      return std::find_if(cores_.begin(), cores_.end(),
                          [&](const Core* core) { return contains(request_.near[task], core->domain); });
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return wish(a) < wish(b); });
    return order;
  }

  void give(std::size_t task, const Core& core, std::vector<int> cpus, std::size_t sharers) {
    TaskCores& placement = result_[task];
    placement.cores.push_back(std::move(cpus));
    placement.sharers = sharers;
    auto& domains = placement.domains;
    const auto at = std::lower_bound(domains.begin(), domains.end(), core.domain);
    if (at == domains.end() || *at != core.domain) domains.insert(at, core.domain);
  }

  Cores cores_;
  const PlacementRequest& request_;
  std::vector<TaskCores> result_;
};

}  // namespace

std::vector<TaskCores> place_tasks(const std::vector<Core>& cores, const PlacementRequest& request) {
  Cores pointers;
  for (const Core& core : cores) pointers.push_back(&core);
  return Distribution(pointers, request).run();
}

}  // namespace lockstep::affinity
