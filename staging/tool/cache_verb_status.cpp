// lockstep-stage status: how full a node's cache is, what fills it, and what to do.

#include <algorithm>
#include <memory>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/units.h"
#include "staging/tool/cache_verbs.h"

namespace lockstep::transfer {
namespace {

struct StatusArguments {
  std::string cache;
  std::string quota = "0", total = "0";
  int keep = 600;
};

struct Sums {
  std::uint64_t objects = 0, bytes = 0, in_use = 0, copying = 0, recent = 0, idle = 0;
  cache::Time oldest, newest;

  void add(const cache::StoreReport& store, std::chrono::seconds keep) {
    objects += store.objects.size();
    bytes = cache::sum(bytes, store.bytes());
    in_use = cache::sum(in_use, store.bytes_in_use());
    copying = cache::sum(copying, store.bytes_copying());
    recent = cache::sum(recent, store.bytes_recent(keep));
    idle = cache::sum(idle, store.bytes_idle(keep));
    for (const cache::ObjectReport& object : store.objects) {
      const cache::Time use = object.object.last_use;
      oldest = oldest == cache::Time() ? use : std::min(oldest, use);
      newest = std::max(newest, use);
    }
  }
};

std::int64_t seconds_of(cache::Time time) {
  return std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count();
}

nlohmann::json to_json(const Sums& sums) {
  return {{"objects", sums.objects},
          {"bytes", sums.bytes},
          {"in_use", sums.in_use},
          {"copying", sums.copying},
          {"recent", sums.recent},
          {"idle", sums.idle},
          {"oldest_use", seconds_of(sums.oldest)},
          {"newest_use", seconds_of(sums.newest)}};
}

std::string owner(const cache::StoreReport& store) {
  return store.folder.filename() == "shared" ? "shared" : user_name(store.user);
}

void add_problems(cache::NodeReport& node, std::uint64_t quota, std::uint64_t total) {
  for (const cache::StoreReport& store : node.stores) {
    for (const std::string& problem : store.problems) node.problems.push_back(owner(store) + ": " + problem);
    if (store.foreign_bytes > 0) {
      node.problems.push_back(
          fmt::format("{}: {} in files that are not part of a store; gc removes them when they are a day old",
                      owner(store), format_bytes(store.foreign_bytes)));
    }
    if (quota > 0 && store.bytes() > quota && owner(store) != "shared") {
      node.problems.push_back(fmt::format("{}: {} over the quota; gc --all --quota removes idle objects",
                                          owner(store), format_bytes(store.bytes() - quota)));
    }
  }
  const std::uint64_t bytes = node.bytes();
  if (total > 0 && bytes > total) {
    node.problems.push_back(
        fmt::format("{} over the total; gc --all --total removes idle objects", format_bytes(bytes - total)));
  }
}

void print_text(const cache::NodeReport& node, const Sums& all, const StatusArguments& arguments,
                std::uint64_t total) {
  const std::chrono::seconds keep(arguments.keep);
  fmt::print("{}: {} {}, {} object{}, {}{}; the disk has {} free\n", node.cache.string(), node.stores.size(),
             node.stores.size() == 1 ? "store" : "stores", all.objects, all.objects == 1 ? "" : "s",
             format_bytes(all.bytes), total > 0 ? " of " + format_bytes(total) : "", format_bytes(node.free));
  fmt::print(
      "in use by jobs {}, being copied {}, used less than {} ago {}, could be freed {}; last used between {} and {}\n",
      format_bytes(all.in_use), format_bytes(all.copying), format_seconds(arguments.keep),
      format_bytes(all.recent), format_bytes(all.idle), format_time(all.oldest), format_time(all.newest));
  fmt::print("{:16} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>5}  {}\n", "user", "objects", "holds",
             "in use", "copying", "recent", "idle", "jobs", "last use");
  for (const cache::StoreReport& store : node.stores) {
    Sums one;
    one.add(store, keep);
    fmt::print("{:16} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>5}  {}\n", owner(store), one.objects,
               format_bytes(one.bytes), format_bytes(one.in_use), format_bytes(one.copying),
               format_bytes(one.recent), format_bytes(one.idle), store.jobs, format_time(one.newest));
  }
  for (const std::string& problem : node.problems) fmt::print("problem: {}\n", printable(problem));
}

void print_json(const cache::NodeReport& node, const Sums& all, std::chrono::seconds keep,
                std::uint64_t quota, std::uint64_t total) {
  nlohmann::json value = to_json(all);
  value.update({{"cache", node.cache.string()}, {"free", node.free}, {"quota", quota}, {"total", total}});
  value["problems"] = node.problems;
  value["users"] = nlohmann::json::array();
  for (const cache::StoreReport& store : node.stores) {
    Sums one;
    one.add(store, keep);
    nlohmann::json user = to_json(one);
    user.update({{"folder", store.folder.string()},
                 {"user", store.user},
                 {"name", owner(store)},
                 {"jobs", store.jobs}});
    value["users"].push_back(std::move(user));
  }
  Tool::print(value);
}

void run_status(const Tool& tool, const StatusArguments& arguments) {
  const std::chrono::seconds keep(arguments.keep);
  const std::uint64_t quota = parse_bytes(arguments.quota);
  const std::uint64_t total = parse_bytes(arguments.total);
  cache::NodeReport node;
  if (cache::is_node_cache(arguments.cache)) {
    node = cache::survey_node(arguments.cache, FileSystem::real(), {});
  } else {
    cache::Store store = existing_store(arguments.cache);
    node.cache = arguments.cache;
    node.free = FileSystem::real().free_bytes(arguments.cache);
    node.stores.push_back(cache::survey(store, FileSystem::real(), true));
  }
  add_problems(node, quota, total);
  Sums all;
  for (const cache::StoreReport& store : node.stores) all.add(store, keep);
  if (tool.json()) {
    print_json(node, all, keep, quota, total);
  } else {
    print_text(node, all, arguments, total);
  }
}

}  // namespace

void add_status_verb(Tool& tool) {
  const auto arguments = std::make_shared<StatusArguments>();
  CLI::App& verb =
      tool.verb("status", "Show how full a node's cache is, which user holds how much, and any problems",
                [&tool, arguments] { run_status(tool, *arguments); });
  verb.add_option("--cache", arguments->cache,
                  "The folder of all stores (root sees all of them), or one store")
      ->required()
      ->check(Tool::named());
  verb.add_option("--quota", arguments->quota, "Limit for each user, to compare with");
  verb.add_option("--total", arguments->total, "Limit for all stores together, to compare with");
  verb.add_option("--keep", arguments->keep, "Seconds that an object stays after its last use")
      ->capture_default_str()
      ->check(CLI::Range(0, kMaxKeepSeconds));
}

}  // namespace lockstep::transfer
