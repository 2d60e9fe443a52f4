#include "staging/transfer/put_verb.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/progress.h"
#include "common/units.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {
namespace {

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

}  // namespace

void add_put_verb(Tool& tool) {
  const auto arguments = std::make_shared<PutArguments>();
  CLI::App& verb = tool.verb("put", "Copy sources into the cache, or find them there",
                             [&tool, arguments] { run_put(tool, *arguments); });
  verb.add_option("source", arguments->sources,
                  "Pack folders, shards, or patterns of shards (\"a-{00..31}.tar\")")
      ->required();
  verb.add_option("--cache", arguments->cache, "Your store on this node; made if missing")->required();
  verb.add_option("--verify", arguments->verify,
                  "What a copy in the cache is checked for: quick, full or off")
      ->capture_default_str();
  verb.add_option("--threads", arguments->threads, "Shards at a time, up to 32; 0 chooses")
      ->check(CLI::Range(0, 32));
  verb.add_option("--nodes", arguments->nodes, "Nodes that stage together; this version takes one")
      ->delimiter(',');
  verb.add_option("--node-id", arguments->node_id, "Which of them this is, from 0");
}

}  // namespace lockstep::transfer
