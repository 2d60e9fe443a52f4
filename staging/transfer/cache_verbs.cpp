#include "staging/transfer/cache_verbs.h"

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/store.h"
#include "staging/transfer/check.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

cache::Store existing_store(const std::string& folder) {
  if (!fs::is_directory(fs::path(folder) / "objects"))
    fail("{} is no cache; lockstep-stage put makes one", folder);
  return cache::Store(folder);
}

std::string format_time(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm local{};
  ::localtime_r(&time, &local);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%F %T", &local));
  return text;
}

void run_ls(const Tool& tool, const std::string& folder) {
  cache::Store store = existing_store(folder);
  for (const cache::ObjectInfo& object : store.list()) {
    const bool leased = store.leased(object.name);
    if (tool.json()) {
      Tool::print({{"object", object.name},
                   {"source", object.source},
                   {"path", store.files(object.name).string()},
                   {"bytes", object.bytes},
                   {"created", object.created},
                   {"leased", leased}});
    } else {
      fmt::print("{} {:>10} {} {:6} {}\n", object.name, format_bytes(object.bytes),
                 format_time(object.created), leased ? "in use" : "", object.source);
    }
  }
}

void run_verify(const Tool& tool, const std::string& folder, int threads) {
  cache::Store store = existing_store(folder);
  int damaged = 0;
  int checked = 0;
  for (const cache::ObjectInfo& object : store.list()) {
    const cache::Hold lock = store.lock(object.name, FileSystem::LockKind::shared);
    if (!store.has(object.name)) continue;
    std::string reason;
    try {
      check_copy(store.files(object.name), Verify::full, threads);
    } catch (const Error& error) {
      reason = error.what();
      ++damaged;
    }
    ++checked;
    if (tool.json()) {
      Tool::print(
          {{"object", object.name}, {"source", object.source}, {"ok", reason.empty()}, {"error", reason}});
    } else {
      fmt::print("{} {} {}\n", object.name, object.source, reason.empty() ? "good" : reason);
    }
  }
  if (damaged > 0)
    fail("{} of {} objects in {} are damaged; put their sources with --verify full", damaged, checked,
         folder);
}

}  // namespace

void add_cache_verbs(Tool& tool) {
  const auto folder = std::make_shared<std::string>();
  const auto threads = std::make_shared<int>(0);
  CLI::App& ls = tool.verb("ls", "List what is in the cache", [&tool, folder] { run_ls(tool, *folder); });
  ls.add_option("--cache", *folder, "The store")->required();
  CLI::App& verify = tool.verb("verify", "Read everything in the cache and check it",
                               [&tool, folder, threads] { run_verify(tool, *folder, *threads); });
  verify.add_option("--cache", *folder, "The store")->required();
  verify.add_option("--threads", *threads, "Shards at a time, up to 32; 0 chooses")->check(CLI::Range(0, 32));
}

}  // namespace lockstep::transfer
