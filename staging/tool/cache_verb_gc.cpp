// lockstep-stage gc: removes from one store, or as root from all, what nobody will come back for.

#include <memory>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/collect.h"
#include "staging/tool/cache_verbs.h"

namespace lockstep::transfer {
namespace {

struct GcArguments {
  std::string cache;
  std::string quota = "0", total = "0", room = "0";
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

void run_gc(const Tool& tool, const GcArguments& arguments) {
  const std::chrono::seconds keep(arguments.keep);
  cache::NodeOptions options;
  options.store.quota = parse_bytes(arguments.quota);
  options.store.keep = keep;
  options.store.dry_run = arguments.dry_run;
  options.total = parse_bytes(arguments.total);
  options.room = parse_bytes(arguments.room);
  if (options.total > 0 && options.room > options.total)
    fail_usage("--room {} is more than --total {}, of which it is to be left free", arguments.room,
               arguments.total);
  cache::NodeReport node;
  if (arguments.all && !FileSystem::real().status(arguments.cache)) {
    // A timer runs from a node's first start on.
    tool.say(arguments.cache + " is not there: nothing was staged on this node yet");
    node.cache = arguments.cache;
  } else if (arguments.all) {
    if (!cache::is_node_cache(arguments.cache))
      fail("{} is not the folder that holds all users' stores; leave out --all for one store",
           arguments.cache);
    node = cache::collect_node(arguments.cache, FileSystem::real(), options);
  } else {
    if (options.total > 0 || options.room > 0) fail_usage("--total and --room need --all");
    cache::Store store =
        existing_store(arguments.cache, {.quota = 0, .total = 0, .ledger_folder = {}, .keep = keep});
    node.cache = arguments.cache;
    node.free = FileSystem::real().free_bytes(arguments.cache);
    node.stores.push_back(cache::collect(store, FileSystem::real(), options.store));
  }
  std::uint64_t bytes = 0;
  std::size_t things = 0;
  for (const cache::StoreReport& store : node.stores) {
    print(tool, store, arguments.dry_run);
    for (const std::string& problem : store.problems)
      node.problems.push_back(store.folder.string() + ": " + problem);
    bytes = cache::sum(bytes, freed(store));
    things += store.removed.size();
  }
  for (const std::string& problem : node.problems) tool.say(problem);
  if (tool.json()) {
    Tool::print({{"cache", node.cache.string()},
                 {"removed", things},
                 {"bytes", bytes},
                 {"holds", node.bytes()},
                 {"free", node.free},
                 {"problems", node.problems},
                 {"dry_run", arguments.dry_run}});
  } else {
    fmt::print("{}: {} {} ({}); stores: {}, which hold {}; the disk has {} free\n", node.cache.string(),
               arguments.dry_run ? "would remove" : "removed", things, format_bytes(bytes),
               node.stores.size(), format_bytes(node.bytes()), format_bytes(node.free));
  }
  if (!node.problems.empty()) fail("problems: {}, named above; the rest is done", node.problems.size());
}

}  // namespace

void add_gc_verb(Tool& tool) {
  const auto arguments = std::make_shared<GcArguments>();
  CLI::App& verb =
      tool.verb("gc", "Remove what crashed calls and ended jobs left, and what is over the limits",
                [&tool, arguments] { run_gc(tool, *arguments); });
  verb.add_option("--cache", arguments->cache, "A store; with --all the folder of all stores")
      ->required()
      ->check(Tool::named());
  verb.add_flag("--all", arguments->all, "As root: every user's store and the shared one");
  verb.add_option("--quota", arguments->quota, "What a user may hold, as 500G; 0: no limit");
  verb.add_option("--total", arguments->total, "What all stores may hold together; 0: no limit");
  verb.add_option("--room", arguments->room, "Of the total, to be left free for who comes next");
  verb.add_option("--keep", arguments->keep, "Seconds that an object stays after its last use")
      ->capture_default_str()
      ->check(CLI::Range(0, kLongestKeep));
  verb.add_flag("--dry-run", arguments->dry_run, "Say what would be removed, and remove nothing");
}

}  // namespace lockstep::transfer
