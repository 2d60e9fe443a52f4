#include "plugin/affinity/placement.h"

#include <algorithm>
#include <climits>
#include <map>
#include <numeric>

namespace lockstep::affinity {
namespace {

using Cores = std::vector<const Core*>;
using Tasks = std::vector<int>;

// Cores that belong together: those of a NUMA node or of a cache.
struct CoreGroup {
  Cores cores;
  int domain = 0;
  int package = 0;
  int tasks = 0;

  long size() const { return static_cast<long>(cores.size()); }
};

template <typename Key>
std::vector<CoreGroup> group_by(const Cores& cores, Key key) {
  std::vector<CoreGroup> groups;
  for (const Core* core : cores) {
    if (groups.empty() || key(*groups.back().cores.back()) != key(*core)) {
      groups.push_back({{}, core->domain, core->package, 0});
    }
    groups.back().cores.push_back(core);
  }
  return groups;
}

int by_domain(const Core& core) {
  return core.domain;
}
int by_cache(const Core& core) {
  return core.cache;
}

// True if group a's tasks have more cores each than group b's, after one more task. `load` breaks ties, so
// that few tasks spread over packages.
bool has_larger_shares(const CoreGroup& a, double load_a, const CoreGroup& b, double load_b) {
  const long left = a.size() * (b.tasks + 1);
  const long right = b.size() * (a.tasks + 1);
  return left != right ? left > right : load_a < load_b;
}

// Chooses a group for every task so that the smallest share is as large as possible. A task goes to one of its wanted
// domains as long as one has a whole core for it. Neighbouring tasks get neighbouring groups.
std::vector<Tasks> spread(std::vector<CoreGroup>& groups, const std::vector<std::vector<int>>& near) {
  std::map<int, std::pair<long, long>> package_load;  // tasks, cores
  for (const CoreGroup& group : groups) package_load[group.package].second += group.size();
  const auto load = [&](const CoreGroup& group) {
    const auto& [tasks, cores] = package_load[group.package];
    return static_cast<double>(tasks) / static_cast<double>(cores);
  };
  const auto choose = [&](const std::vector<int>& wanted) {
    std::size_t best = groups.size();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const CoreGroup& group = groups[g];
      const bool fits = wanted.empty() || std::count(wanted.begin(), wanted.end(), group.domain) > 0;
      if (!fits || group.tasks >= group.size()) continue;
      if (best == groups.size() || has_larger_shares(group, load(group), groups[best], load(groups[best])))
        best = g;
    }
    return best;
  };

  Tasks order(near.size());
  std::iota(order.begin(), order.end(), 0);
  const auto choices = [&](int task) {  // tasks with few choices first, tasks without a wish last
    const std::size_t wanted = near[static_cast<std::size_t>(task)].size();
    return wanted == 0 ? INT_MAX : static_cast<int>(wanted);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return choices(a) < choices(b); });

  std::vector<std::size_t> group_of(near.size(), groups.size());
  const auto place = [&](int task, const std::vector<int>& wanted) {
    const std::size_t group = choose(wanted);
    if (group == groups.size()) return;
    group_of[static_cast<std::size_t>(task)] = group;
    ++groups[group].tasks;
    ++package_load[groups[group].package].first;
  };
  for (const int task : order) place(task, near[static_cast<std::size_t>(task)]);
  // A task whose domains are full is placed last, so that it takes no core that another task wants.
  for (const int task : order) {
    if (group_of[static_cast<std::size_t>(task)] == groups.size()) place(task, {});
  }
  std::map<std::vector<int>, std::pair<Tasks, std::vector<std::size_t>>>
      alike;  // wanted -> tasks, their groups
  for (const int task : order) {
    auto& [tasks, chosen] = alike[near[static_cast<std::size_t>(task)]];
    tasks.push_back(task);
    chosen.push_back(group_of[static_cast<std::size_t>(task)]);
  }
  std::vector<Tasks> members(groups.size());
  for (auto& [wanted, pair] : alike) {
    auto& [tasks, chosen] = pair;
    std::sort(chosen.begin(), chosen.end());
    for (std::size_t i = 0; i < tasks.size(); ++i) members[chosen[i]].push_back(tasks[i]);
  }
  for (Tasks& tasks : members) std::sort(tasks.begin(), tasks.end());
  return members;
}

// The largest share of at most `limit` that lets `count` tasks fit into the groups without crossing a border; 0 if
// there are more tasks than cores.
int share_within(const std::vector<CoreGroup>& groups, long count, int limit) {
  for (int share = limit; share > 0; --share) {
    long tasks = 0;
    for (const CoreGroup& group : groups) tasks += group.size() / share;
    if (tasks >= count) return share;
  }
  return 0;
}

class Distribution {
 public:
  Distribution(const Cores& cores, const PlacementRequest& request)
      : cores_(cores), request_(request), result_(static_cast<std::size_t>(request.tasks)) {}

  std::vector<TaskCores> run() {
    const long count = static_cast<long>(cores_.size());
    if (request_.tasks > count) {
      share_cores();
    } else {
      whole_cores(static_cast<int>(count / request_.tasks));
    }
    return std::move(result_);
  }

 private:
  void whole_cores(int fair) {
    if (request_.cores_per_task > 0) fair = std::min(fair, request_.cores_per_task);
    std::vector<CoreGroup> groups =
        request_.policy == Policy::cache ? group_by(cores_, by_cache) : group_by(cores_, by_domain);
    long largest = 0;
    for (const CoreGroup& group : groups) largest = std::max(largest, group.size());
    const bool has_wishes =
        std::any_of(request_.near.begin(), request_.near.end(), [](auto& n) { return !n.empty(); });
    const bool confined = request_.policy != Policy::core && (fair <= largest || has_wishes);
    if (confined) {
      within_groups(groups);
    } else if (request_.policy == Policy::core || request_.policy == Policy::automatic) {
      in_order(cores_, tasks_by_wish(), limit(INT_MAX - 1));
    } else {
      whole_groups(groups);
    }
  }

  // The maximum number of cores for a task if the smallest share is `share`: one more, but at most as requested.
  int limit(int share) const {
    return request_.cores_per_task > 0 ? std::min(request_.cores_per_task, share + 1) : share + 1;
  }

  void within_groups(std::vector<CoreGroup>& groups) {
    const std::vector<Tasks> members = spread(groups, request_.near);
    long share = LONG_MAX;
    for (const CoreGroup& group : groups) {
      if (group.tasks > 0) share = std::min(share, group.size() / group.tasks);
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].tasks > 0) within_group(groups[g], members[g], static_cast<int>(share));
    }
  }

  // Distributes one NUMA node's cores: cache by cache if every task still gets `share`, otherwise in order.
  void within_group(const CoreGroup& group, const Tasks& tasks, int share) {
    const bool hybrid = group_kinds(group.cores).size() > 1;
    std::vector<CoreGroup> caches = group_by(group.cores, by_cache);
    const int wanted = request_.cores_per_task > 0 ? std::min(share, request_.cores_per_task) : share;
    if (hybrid || share_within(caches, static_cast<long>(tasks.size()), wanted) < wanted) {
      in_order(group.cores, tasks, limit(share));
      return;
    }
    const std::vector<Tasks> members = spread(caches, std::vector<std::vector<int>>(tasks.size()));
    for (std::size_t c = 0; c < caches.size(); ++c) {
      Tasks of_cache;
      for (const int i : members[c]) of_cache.push_back(tasks[static_cast<std::size_t>(i)]);
      if (!of_cache.empty()) in_order(caches[c].cores, of_cache, limit(share));
    }
  }

  // Gives each task an equal number of whole groups.
  void whole_groups(const std::vector<CoreGroup>& groups) {
    const std::size_t count = static_cast<std::size_t>(request_.tasks);
    const std::size_t each = groups.size() / count;
    std::vector<Cores> shares(count);
    std::size_t smallest = cores_.size();
    for (std::size_t t = 0; t < count; ++t) {
      const std::size_t begin = t * groups.size() / count;
      for (std::size_t g = begin; g < begin + each; ++g) {
        shares[t].insert(shares[t].end(), groups[g].cores.begin(), groups[g].cores.end());
      }
      smallest = std::min(smallest, shares[t].size());
    }
    for (std::size_t t = 0; t < count; ++t)
      in_order(shares[t], {static_cast<int>(t)}, limit(static_cast<int>(smallest)));
  }

  static std::map<int, Cores> group_kinds(const Cores& cores) {
    std::map<int, Cores> kinds;
    for (const Core* core : cores) kinds[core->kind].push_back(core);
    return kinds;
  }

  // Gives neighbouring cores to neighbouring tasks, in shares that are equal to within one core. Each kind of core is
  // distributed separately; its spare cores go to the tasks after those that got the previous kind's.
  void in_order(const Cores& cores, const Tasks& tasks, int max_cores) {
    std::size_t next_spare = 0;
    std::vector<Cores> shares(tasks.size());
    for (const auto& [kind, of_kind] : group_kinds(cores)) {
      const std::size_t each = of_kind.size() / tasks.size();
      const std::size_t spare = of_kind.size() % tasks.size();
      auto at = of_kind.begin();
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        const bool extra = (t + tasks.size() - next_spare) % tasks.size() < spare;
        const auto end = at + static_cast<std::ptrdiff_t>(each + (extra ? 1 : 0));
        shares[t].insert(shares[t].end(), at, end);
        at = end;
      }
      next_spare = (next_spare + spare) % tasks.size();
    }
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      if (shares[t].size() > static_cast<std::size_t>(max_cores))
        shares[t].resize(static_cast<std::size_t>(max_cores));
      for (const Core* core : shares[t]) give(tasks[t], *core, core->cpus, 1);
    }
  }

  // For more tasks than cores: one task for each core, then more on the core with the fewest tasks per
  // thread.
  void share_cores() {
    std::vector<long> load(cores_.size(), 1);
    for (long left = request_.tasks - static_cast<long>(cores_.size()); left > 0; --left) {
      std::size_t best = 0;
      for (std::size_t c = 1; c < cores_.size(); ++c) {
        const long threads = static_cast<long>(cores_[c]->cpus.size());
        if (threads * (load[best] + 1) > static_cast<long>(cores_[best]->cpus.size()) * (load[c] + 1))
          best = c;
      }
      ++load[best];
    }
    std::vector<std::size_t> seats;  // a core for each task
    for (std::size_t c = 0; c < cores_.size(); ++c)
      seats.insert(seats.end(), static_cast<std::size_t>(load[c]), c);
    std::vector<long> seated(cores_.size(), 0);
    const std::vector<std::size_t> core_of = seat_tasks(seats);
    for (int task = 0; task < request_.tasks; ++task) {
      const std::size_t c = core_of[static_cast<std::size_t>(task)];
      const std::vector<int>& cpus = cores_[c]->cpus;
      const long threads = static_cast<long>(cpus.size());
      const long at = seated[c]++;
      const long begin = at * threads / load[c];
      const long end = std::max(begin + 1, (at + 1) * threads / load[c]);
      give(task, *cores_[c], {cpus.begin() + begin, cpus.begin() + end}, static_cast<int>(load[c]));
    }
  }

  // Tasks with a wish take the first free seat in a wanted domain; the others take the free seats in order.
  std::vector<std::size_t> seat_tasks(const std::vector<std::size_t>& seats) const {
    std::vector<std::size_t> core_of(seats.size());
    std::vector<bool> taken(seats.size(), false);
    std::vector<bool> done(seats.size(), false);
    for (const bool wishes : {true, false}) {
      std::map<std::vector<int>, std::size_t> first_free;
      for (std::size_t task = 0; task < seats.size(); ++task) {
        const std::vector<int> any;
        const std::vector<int>& wanted = wishes ? request_.near[task] : any;
        if (done[task] || (wishes && wanted.empty())) continue;
        std::size_t& seat = first_free[wanted];
        const auto suits = [&](std::size_t s) {
          return !taken[s] &&
                 (wanted.empty() || std::count(wanted.begin(), wanted.end(), cores_[seats[s]]->domain) > 0);
        };
        while (seat < seats.size() && !suits(seat)) ++seat;
        if (seat == seats.size()) continue;
        taken[seat] = true;
        done[task] = true;
        core_of[task] = seats[seat];
      }
    }
    return core_of;
  }

  // The tasks, ordered by the first core that they want; tasks without a wish last.
  Tasks tasks_by_wish() const {
    Tasks order(static_cast<std::size_t>(request_.tasks));
    std::iota(order.begin(), order.end(), 0);
    const auto wish = [&](int task) {
      const auto& wanted = request_.near[static_cast<std::size_t>(task)];
      return std::find_if(cores_.begin(), cores_.end(), [&](const Core* core) {
        return std::count(wanted.begin(), wanted.end(), core->domain) > 0;
      });
    };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return wish(a) < wish(b); });
    return order;
  }

  void give(int task, const Core& core, std::vector<int> cpus, int sharers) {
    TaskCores& placement = result_[static_cast<std::size_t>(task)];
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
