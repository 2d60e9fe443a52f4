#include "staging/tool/cache_verbs.h"

#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/progress.h"
#include "common/units.h"
#include "staging/transfer/source_lookup.h"

namespace lockstep::transfer {
namespace {

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
