#include "staging/tool/cache_verbs.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/units.h"
#include "staging/transfer/source_lookup.h"

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

namespace fs = std::filesystem;

std::string steps_of(const cache::ObjectReport& object) {
  std::string steps;
  for (const cache::LeaseHolder& lease : object.leases) steps += (steps.empty() ? "" : ",") + lease.step;
  if (steps.empty() && object.in_use) return "a job's folder";
  return steps;
}

void run_ls(const Tool& tool, const std::string& folder) {
  cache::Store store = existing_store(folder);
  for (const cache::ObjectReport& object : cache::survey(store, FileSystem::real(), false).objects) {
    const cache::ObjectInfo& info = object.object.info;
    if (tool.json()) {
      nlohmann::json leases = nlohmann::json::array();
      for (const cache::LeaseHolder& lease : object.leases)
        leases.push_back({{"step", lease.step}, {"user", lease.user}});
      Tool::print(
          {{"object", info.name},
           {"source", info.source},
           {"format", info.format},
           {"path", fs::absolute(store.files(info.name)).string()},
           {"bytes", info.bytes},
           {"created", info.created},
           {"last_use",
            std::chrono::floor<std::chrono::seconds>(object.object.last_use).time_since_epoch().count()},
           {"leased", !object.leases.empty()},
           {"in_use", object.in_use},
           {"leases", leases},
           {"problem", object.object.problem}});
    } else {
      const std::string steps = steps_of(object);
      fmt::print("{} {:>10} {:8} used {} {}{}{}\n", info.name, format_bytes(info.bytes), info.format,
                 format_time(object.object.last_use), steps.empty() ? "" : "by " + printable(steps) + " ",
                 printable(info.source),
                 object.object.problem.empty() ? "" : " " + printable(object.object.problem));
    }
  }
}

void check_object(const cache::ObjectInfo& info, const fs::path& files, int threads) {
  Progress progress("checking " + info.source, info.bytes);
  std::mutex mutex;
  std::uint64_t done = 0;
  progress.update(0);
  check_copy(files, Verify::full, threads, [&](std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    progress.update(done += bytes);
  });
}

void run_verify(const Tool& tool, const std::string& folder, int threads) {
  cache::Store store = existing_store(folder);
  int damaged = 0;
  int checked = 0;
  for (const cache::ObjectUsage& object : store.usage().objects) {
    const std::string& name = object.info.name;
    const cache::ObjectLock lock = store.lock(name, FileSystem::LockKind::shared);
    if (!store.has(name)) continue;
    std::string reason = object.problem;
    try {
      if (reason.empty()) check_object(object.info, store.files(name), threads);
    } catch (const Error& error) {
      reason = error.what();
    }
    damaged += reason.empty() ? 0 : 1;
    ++checked;
    if (tool.json()) {
      Tool::print({{"object", name},
                   {"source", object.info.source},
                   {"format", object.info.format},
                   {"ok", reason.empty()},
                   {"error", reason}});
    } else {
      fmt::print("{} {} {}\n", name, printable(object.info.source),
                 reason.empty() ? "good" : printable(reason));
    }
  }
  if (damaged > 0)
    fail("{} of {} objects in {} are damaged; put their sources again with --verify full", damaged, checked,
         folder);
}

// How full a node's cache is, what fills it, and what to do.
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

}  // namespace

cache::Store existing_store(const std::string& folder, cache::StoreOptions options) {
  if (!fs::is_directory(fs::path(folder) / "objects")) {
    if (fs::exists(fs::path(folder) / "usage.json") ||
        fs::exists(fs::path(folder) / std::to_string(::geteuid())))
      fail("{} holds the stores of all users: name one of them, or use gc --all", folder);
    fail("{} is not a cache; the first job or lockstep-stage put makes one", folder);
  }
  return cache::Store(folder, std::move(options));
}

std::string format_time(cache::Time time) {
  if (time == cache::Time()) return "-";
  const std::time_t seconds = std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count();
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%F %T", &local));
  return text;
}

void add_cache_verbs(Tool& tool) {
  const auto folder = std::make_shared<std::string>();
  const auto threads = std::make_shared<int>(0);
  CLI::App& ls =
      tool.verb("ls", "List the objects in a store, when each was last used and which steps use it",
                [&tool, folder] { run_ls(tool, *folder); });
  ls.add_option("--cache", *folder, "The store")->required()->check(Tool::named());
  CLI::App& verify = tool.verb("verify", "Read and check everything in a store",
                               [&tool, folder, threads] { run_verify(tool, *folder, *threads); });
  verify.add_option("--cache", *folder, "The store")->required()->check(Tool::named());
  verify.add_option("--threads", *threads, "Files to read at a time, up to 32; 0: automatic")
      ->check(CLI::Range(0, 32));
  add_status_verb(tool);
  add_gc_verb(tool);
  add_prefetch_verb(tool);
}

}  // namespace lockstep::transfer
