// lockstep-stage: puts packed data into the node's cache, and looks after the cache.

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/progress.h"
#include "common/tool.h"
#include "common/units.h"
#include "staging/cache/store.h"
#include "staging/transfer/check.h"
#include "staging/transfer/put.h"
#include "staging/transfer/step.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

struct PutArguments {
  std::vector<std::string> sources;
  std::string cache;
  std::string verify = "quick";
  int threads = 0;
  std::vector<std::string> nodes;
  int node_id = 0;
};

/// One progress line per source that is copied.
class CopyProgress {
 public:
  void update(const std::string& source, std::uint64_t done, std::uint64_t total) {
    if (!progress_ || source != source_) {
      progress_.reset();
      progress_ = std::make_unique<Progress>("staging " + source, total);
      source_ = source;
    }
    progress_->update(done);
  }

 private:
  std::string source_;
  std::unique_ptr<Progress> progress_;
};

void check_nodes(const PutArguments& arguments) {
  if (arguments.nodes.size() > 1) {
    fail_usage(
        "--nodes: exchange between nodes is not supported by this version; run put on each node without it");
  }
  if (arguments.node_id != 0) fail_usage("--node-id {}: there is no such node in --nodes", arguments.node_id);
}

void print_result(const Tool& tool, const PutResult& result) {
  if (!result.note.empty()) fmt::print(stderr, "lockstep-stage: {}: {}\n", result.source, result.note);
  if (tool.json()) {
    Tool::print({{"source", result.source},
                 {"path", result.path.string()},
                 {"bytes", result.bytes},
                 {"from_source", result.from_source},
                 {"from_peers", result.from_peers},
                 {"hit", result.hit},
                 {"seconds", result.seconds},
                 {"object", result.object}});
    return;
  }
  fmt::print("{}: {} {} in {}: {}\n", result.source, format_bytes(result.bytes),
             result.hit ? "found in the cache" : "copied", format_seconds(result.seconds),
             result.path.string());
}

void run_put(const Tool& tool, const PutArguments& arguments) {
  check_nodes(arguments);
  PutOptions options;
  options.cache_dir = arguments.cache;
  options.verify = parse_verify(arguments.verify);
  options.threads = arguments.threads;
  options.waiting = [](const std::string& source) {
    fmt::print(stderr, "lockstep-stage: {}: another process is copying it, waiting\n", source);
  };
  std::vector<PutResult> results;
  {
    CopyProgress progress;
    options.progress = [&](const std::string& source, std::uint64_t done, std::uint64_t total) {
      progress.update(source, done, total);
    };
    results = put(arguments.sources, options);
  }
  for (const PutResult& result : results) print_result(tool, result);
}

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

int run(int argc, char** argv) {
  Tool tool("lockstep-stage",
            "Put packed data into this node's cache, verified and shared by the jobs that run here");
  constexpr const char* kThreadsHelp = "Shards at a time, up to 32; 0 chooses";

  PutArguments arguments;
  CLI::App& put_verb =
      tool.verb("put", "Copy sources into the cache, or find them there", [&] { run_put(tool, arguments); });
  put_verb
      .add_option("source", arguments.sources,
                  "Pack folders, shards, or patterns of shards (\"a-{00..31}.tar\")")
      ->required();
  put_verb.add_option("--cache", arguments.cache, "Your store on this node; made if missing")->required();
  put_verb
      .add_option("--verify", arguments.verify, "What a copy in the cache is checked for: quick, full or off")
      ->capture_default_str();
  put_verb.add_option("--threads", arguments.threads, kThreadsHelp)->check(CLI::Range(0, 32));
  put_verb.add_option("--nodes", arguments.nodes, "Nodes that stage together; this version takes one")
      ->delimiter(',');
  put_verb.add_option("--node-id", arguments.node_id, "Which of them this is, from 0");

  std::string folder;
  int threads = 0;
  CLI::App& ls_verb = tool.verb("ls", "List what is in the cache", [&] { run_ls(tool, folder); });
  ls_verb.add_option("--cache", folder, "The store")->required();
  CLI::App& verify_verb = tool.verb("verify", "Read everything in the cache and check it",
                                    [&] { run_verify(tool, folder, threads); });
  verify_verb.add_option("--cache", folder, "The store")->required();
  verify_verb.add_option("--threads", threads, kThreadsHelp)->check(CLI::Range(0, 32));

  add_step_verbs(tool);
  return tool.run(argc, argv);
}

}  // namespace
}  // namespace lockstep::transfer

int main(int argc, char** argv) {
  return lockstep::transfer::run(argc, argv);
}
