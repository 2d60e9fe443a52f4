// lockstep-stage gc: removes what is no longer needed from one store or, as root, from all.

#include <memory>

#include "common/error.h"
#include "common/leaf/options/config.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/units.h"
#include "staging/cache/collect.h"
#include "staging/tool/cache_verbs.h"

namespace lockstep::transfer {
namespace {

struct GcArguments {
  std::string cache, config = "/etc/lockstep/lockstep.conf";
  std::string quota, total, reserve;
  int keep = -1;
  bool all = false;
  bool dry_run = false;
};

void print(const Tool& tool, const cache::StoreReport& store, bool dry_run) {
  for (const cache::Removal& removal : store.removed) {
    if (tool.json()) {
      Tool::print({{"folder", store.folder.string()},
                   {"removed", removal.what},
                   {"name", removal.name},
                   {"source", removal.source},
                   {"bytes", removal.bytes},
                   {"why", removal.why},
                   {"dry_run", dry_run}});
    } else {
      fmt::print("{}: {} {} {} ({}), {}: {}\n", store.folder.string(), dry_run ? "would remove" : "removed",
                 removal.what, printable(removal.name), format_bytes(removal.bytes),
                 removal.source.empty() ? "-" : printable(removal.source), removal.why);
    }
  }
}

std::uint64_t freed(const cache::StoreReport& store) {
  std::uint64_t bytes = 0;
  for (const cache::Removal& removal : store.removed) bytes = cache::sum(bytes, removal.bytes);
  return bytes;
}

cache::NodeOptions options_for(const CacheLimits& limits, bool dry_run) {
  cache::NodeOptions options;
  options.store.quota = limits.quota;
  options.store.keep = std::chrono::seconds(limits.keep);
  options.store.dry_run = dry_run;
  options.total = limits.total;
  options.reserve = std::min(limits.reserve, limits.total);
  return options;
}

/// The caches to collect, with their limits.
std::vector<CacheLimits> targets(const GcArguments& arguments) {
  const bool limits_given =
      arguments.keep >= 0 || !(arguments.quota + arguments.total + arguments.reserve).empty();
  if (arguments.cache.empty()) {
    if (!arguments.all) fail_usage("gc needs --cache, or --all for the caches that lockstep.conf names");
    if (limits_given) fail_usage("limits need --cache: without it, those of {} hold", arguments.config);
    return cache_limits(arguments.config);
  }
  const auto size = [](const std::string& text) { return text.empty() ? 0 : parse_bytes(text); };
  CacheLimits limits{arguments.cache, size(arguments.quota), size(arguments.total), size(arguments.reserve),
                     arguments.keep >= 0 ? arguments.keep : 600};
  if (limits.total > 0 && limits.reserve > limits.total)
    fail_usage("--reserve ({}) must not exceed --total ({})", arguments.reserve, arguments.total);
  if (!arguments.all && (limits.total > 0 || limits.reserve > 0))
    fail_usage("--total and --reserve need --all");
  return {limits};
}

/// Replaces <cache>/usage.json: what each user holds on this node, for the exporter, which may not look into users' stores.
/// Root writes it at each `gc --all`, and everyone may read it.
void write_usage_file(const cache::NodeReport& node) {
  nlohmann::json users = nlohmann::json::array();
  std::uint64_t shared = 0;
  for (const cache::StoreReport& store : node.stores) {
    if (store.folder.filename() == "shared") {
      shared = store.bytes();
      continue;
    }
    users.push_back(
        {{"user", user_name(store.user)}, {"bytes", store.bytes()}, {"objects", store.objects.size()}});
  }
  const nlohmann::json usage{{"version", 1},
                             {"written", std::time(nullptr)},
                             {"users", std::move(users)},
                             {"total", node.bytes()},
                             {"shared", shared}};
  constexpr mode_t kForAll = 0644;
  write_file_atomically(node.cache / "usage.json",
                        usage.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", kForAll);
}

cache::NodeReport collect_all(const Tool& tool, const std::string& folder,
                              const cache::NodeOptions& options) {
  if (!FileSystem::real().status(folder)) {
    // Not an error: the timer also runs before the first job.
    tool.say(folder + " does not exist: nothing has been staged on this node yet");
    cache::NodeReport none;
    none.cache = folder;
    return none;
  }
  if (!cache::is_node_cache(folder))
    fail("{} is not the folder of all users' stores; leave out --all to collect one store", folder);
  cache::NodeReport node = cache::collect_node(folder, FileSystem::real(), options);
  if (options.store.dry_run) return node;
  try {
    write_usage_file(node);
  } catch (const Error& error) {
    node.problems.emplace_back(error.what());
  }
  return node;
}

cache::NodeReport collect_one(const std::string& folder, const cache::CollectOptions& options) {
  cache::Store store = existing_store(folder, {.keep = options.keep});
  cache::NodeReport node;
  node.cache = folder;
  node.free = FileSystem::real().free_bytes(folder);
  node.stores.push_back(cache::collect(store, FileSystem::real(), options));
  return node;
}

/// Prints what was done. Returns the number of problems.
std::size_t print(const Tool& tool, const GcArguments& arguments, cache::NodeReport node) {
  std::uint64_t bytes = 0;
  std::size_t removed = 0;
  for (const cache::StoreReport& store : node.stores) {
    print(tool, store, arguments.dry_run);
    for (const std::string& problem : store.problems)
      node.problems.push_back(store.folder.string() + ": " + problem);
    bytes = cache::sum(bytes, freed(store));
    removed += store.removed.size();
  }
  for (const std::string& problem : node.problems) tool.say(problem);
  if (tool.json()) {
    Tool::print({{"cache", node.cache.string()},
                 {"removed", removed},
                 {"bytes", bytes},
                 {"holds", node.bytes()},
                 {"free", node.free},
                 {"problems", node.problems},
                 {"dry_run", arguments.dry_run}});
  } else {
    fmt::print("{}: {} {} ({}); stores: {}, which hold {}; the disk has {} free\n", node.cache.string(),
               arguments.dry_run ? "would remove" : "removed", removed, format_bytes(bytes),
               node.stores.size(), format_bytes(node.bytes()), format_bytes(node.free));
  }
  return node.problems.size();
}

void run_gc(const Tool& tool, const GcArguments& arguments) {
  const std::vector<CacheLimits> caches = targets(arguments);
  if (caches.empty()) tool.say(arguments.config + " names no cache: nothing to do");
  std::size_t problems = 0;
  for (const CacheLimits& limits : caches) {
    const cache::NodeOptions options = options_for(limits, arguments.dry_run);
    problems += print(
        tool, arguments,
        arguments.all ? collect_all(tool, limits.cache, options) : collect_one(limits.cache, options.store));
  }
  if (problems > 0) fail("there were problems ({}), listed above; everything else is done", problems);
}

}  // namespace

void add_gc_verb(Tool& tool) {
  const auto arguments = std::make_shared<GcArguments>();
  CLI::App& verb =
      tool.verb("gc", "Remove what crashed calls and ended jobs left, and evict what is over the limits",
                [&tool, arguments] { run_gc(tool, *arguments); });
  verb.add_option(
          "--cache", arguments->cache,
          "A store; with --all, the folder of all stores; default with --all: all that --config names")
      ->check(Tool::named());
  verb.add_option("--config", arguments->config, "The plugin's file, which has the caches and their limits")
      ->capture_default_str();
  verb.add_flag("--all", arguments->all, "As root: every user's store and the shared one");
  verb.add_option("--quota", arguments->quota, "Limit for each user, such as 500G; 0: no limit");
  verb.add_option("--total", arguments->total, "Limit for all stores together; 0: no limit");
  verb.add_option("--reserve", arguments->reserve, "Part of the total to leave free for the next jobs");
  verb.add_option("--keep", arguments->keep, "Seconds that an object stays after its last use; default: 600")
      ->check(CLI::Range(0, kMaxKeepSeconds));
  verb.add_flag("--dry-run", arguments->dry_run, "Only print what would be removed");
}

}  // namespace lockstep::transfer
