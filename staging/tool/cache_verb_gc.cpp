// lockstep-stage gc: removes what is no longer needed from one store or, as root, from all.

#include <memory>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/collect.h"
#include "staging/tool/cache_verbs.h"

namespace lockstep::transfer {
namespace {

struct GcArguments {
  std::string cache;
  std::string quota = "0", total = "0", reserve = "0", room;
  int keep = 600;
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

void run_gc(const Tool& tool, GcArguments arguments) {
  if (!arguments.room.empty()) {
    tool.say("--room is now called --reserve; the old name still works");
    arguments.reserve = arguments.room;
  }
  const std::chrono::seconds keep(arguments.keep);
  cache::NodeOptions options;
  options.store.quota = parse_bytes(arguments.quota);
  options.store.keep = keep;
  options.store.dry_run = arguments.dry_run;
  options.total = parse_bytes(arguments.total);
  options.reserve = parse_bytes(arguments.reserve);
  if (options.total > 0 && options.reserve > options.total)
    fail_usage("--reserve ({}) must not exceed --total ({})", arguments.reserve, arguments.total);
  cache::NodeReport node;
  if (arguments.all && !FileSystem::real().status(arguments.cache)) {
    // Not an error: the timer also runs before the first job.
    tool.say(arguments.cache + " does not exist: nothing has been staged on this node yet");
    node.cache = arguments.cache;
  } else if (arguments.all) {
    if (!cache::is_node_cache(arguments.cache))
      fail("{} is not the folder of all users' stores; leave out --all to collect one store",
           arguments.cache);
    node = cache::collect_node(arguments.cache, FileSystem::real(), options);
  } else {
    if (options.total > 0 || options.reserve > 0) fail_usage("--total and --reserve need --all");
    cache::Store store = existing_store(arguments.cache, {.keep = keep});
    node.cache = arguments.cache;
    node.free = FileSystem::real().free_bytes(arguments.cache);
    node.stores.push_back(cache::collect(store, FileSystem::real(), options.store));
  }
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
  if (!node.problems.empty())
    fail("there were problems ({}), listed above; everything else is done", node.problems.size());
}

}  // namespace

void add_gc_verb(Tool& tool) {
  const auto arguments = std::make_shared<GcArguments>();
  CLI::App& verb =
      tool.verb("gc", "Remove what crashed calls and ended jobs left, and evict what is over the limits",
                [&tool, arguments] { run_gc(tool, *arguments); });
  verb.add_option("--cache", arguments->cache, "A store; with --all, the folder of all stores")
      ->required()
      ->check(Tool::named());
  verb.add_flag("--all", arguments->all, "As root: every user's store and the shared one");
  verb.add_option("--quota", arguments->quota, "Limit for each user, such as 500G; 0: no limit");
  verb.add_option("--total", arguments->total, "Limit for all stores together; 0: no limit");
  verb.add_option("--reserve", arguments->reserve, "Part of the total to leave free for the next jobs");
  verb.add_option("--room", arguments->room)->group("");  // the old name of --reserve, not shown by --help
  verb.add_option("--keep", arguments->keep, "Seconds that an object stays after its last use")
      ->capture_default_str()
      ->check(CLI::Range(0, kMaxKeepSeconds));
  verb.add_flag("--dry-run", arguments->dry_run, "Only print what would be removed");
}

}  // namespace lockstep::transfer
