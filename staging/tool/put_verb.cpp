// lockstep-stage put: copies sources into the cache of this node, or of several nodes together.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/random.h"
#include "common/leaf/text.h"
#include "common/units.h"
#include "staging/tool/cache_verbs.h"
#include "staging/transfer/put.h"
#include "staging/transfer/put_nodes.h"

namespace lockstep::transfer {
namespace {

struct PutArguments {
  std::vector<std::string> sources;
  std::string cache;
  std::string verify = "quick";
  int threads = 0;
  std::size_t lanes = 0;
  std::vector<std::string> nodes;
  std::uint32_t node_id = 0;
  std::string key_file;
  std::string quota, min_free, bandwidth;
  int keep = -1;
  int call_timeout = 0;
  std::string shared;
};

namespace fs = std::filesystem;

constexpr std::size_t kKeyBytes = 32;

fs::path key_path() {
  if (const auto config = environment::get("XDG_CONFIG_HOME"))
    return fs::path(*config) / "lockstep/nodes.key";
  if (const auto home = environment::get("HOME")) return fs::path(*home) / ".config/lockstep/nodes.key";
  fail_usage("--nodes needs a key, and HOME is not set: give --key-file or set LOCKSTEP_RENDEZVOUS_KEY");
}

// The file gets its name only when it is complete. If several processes make it at once, the first one stays.
void make_key(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) fail("cannot make the folder {}: {}", path.parent_path().string(), error.message());
  std::string temporary = path.string() + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // 0600
  if (!fd) fail_errno("cannot make {}", temporary);
  int made = 0;
  try {
    write_all(fd.get(), random_hex(kKeyBytes) + "\n", temporary);
    if (::link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) made = errno;
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  ::unlink(temporary.c_str());
  if (made != 0) fail("cannot make {}: {}", path.string(), std::generic_category().message(made));
}

// The user's key, which nodes share without Slurm if the user names no other: lockstep/nodes.key in $XDG_CONFIG_HOME or
// ~/.config, made if it is missing. Nodes that share the home folder have the same key.
std::string own_nodes_key() {
  const fs::path path = key_path();
  if (!fs::exists(path)) make_key(path);
  const UniqueFd fd = open_file(path, O_RDONLY);
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot read {}", path.string());
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    fail("other users can read or write {}: remove it, and the next call makes a new one", path.string());
  }
  std::string key = read_text_file(path);
  while (!key.empty() && key.back() == '\n') key.pop_back();
  if (key.empty()) fail("{} is empty: remove it, and the next call makes a new one", path.string());
  return key;
}

std::string key_of(const PutArguments& arguments) {
  if (arguments.key_file.empty()) {
    const auto key = environment::get("LOCKSTEP_RENDEZVOUS_KEY");
    return key ? *key : own_nodes_key();
  }
  std::string key = read_text_file(arguments.key_file);
  while (!key.empty() && (key.back() == '\n' || key.back() == ' ')) key.pop_back();
  return key;
}

std::vector<PutResult> put_together(const PutArguments& arguments, const PutOptions& options) {
  NodesOptions nodes;
  nodes.nodes = arguments.nodes;
  nodes.node_id = arguments.node_id;
  nodes.key = key_of(arguments);
  nodes.call_timeout = std::chrono::seconds(arguments.call_timeout);
  nodes.stop = [](const std::string& why) {
    // The copy stays as it is; the next call continues it.
    const std::string line = "lockstep-stage: " + why + "\n";
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
    ::_exit(1);
  };
  return put_on_nodes(arguments.sources, options, nodes);
}

void print_result(const Tool& tool, const PutResult& result) {
  if (!result.note.empty()) tool.say(result.source + ": " + result.note);
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
  fmt::print("{}: {} {} in {}: {}\n", printable(result.source), format_bytes(result.bytes),
             result.hit ? "found in the cache" : "copied", format_seconds(result.seconds),
             printable(result.path.string()));
}

void run_put(const Tool& tool, const PutArguments& arguments) {
  PutOptions options;
  options.cache_dir = arguments.cache;
  options.verify = parse_verify(arguments.verify);
  options.threads = arguments.threads;
  options.sizes.lanes = arguments.lanes;
  const auto size = [](const std::string& text) { return text.empty() ? 0 : parse_bytes(text); };
  options.limits.quota = size(arguments.quota);
  options.limits.min_free = size(arguments.min_free);
  options.bandwidth = size(arguments.bandwidth);
  if (arguments.keep >= 0) options.limits.keep = std::chrono::seconds(arguments.keep);
  if (!arguments.shared.empty()) options.shared = std::filesystem::absolute(arguments.shared);
  options.limits.notice = [&tool](const std::string& line) { tool.say(line); };
  CopyProgress progress(tool, options);
  options.on.done = [&](const PutResult& result) {
    progress.end();
    print_result(tool, result);
  };
  if (arguments.nodes.size() < 2) {
    if (arguments.node_id != 0) fail_usage("--node-id {}: --nodes has no such node", arguments.node_id);
    put(arguments.sources, options);
    return;
  }
  options.on.done = {};  // nothing is done before all nodes have agreed
  const std::vector<PutResult> results = put_together(arguments, options);
  progress.end();
  for (const PutResult& result : results) print_result(tool, result);
}

}  // namespace

void add_put_verb(Tool& tool) {
  const auto arguments = std::make_shared<PutArguments>();
  CLI::App& verb = tool.verb("put", "Copy sources into the cache, or find them there",
                             [&tool, arguments] { run_put(tool, *arguments); });
  verb.add_option("source", arguments->sources, "Folders, files, or patterns of files (\"a-{00..31}.tar\")")
      ->required();
  verb.add_option("--cache", arguments->cache, "Your store on this node; made if missing")
      ->required()
      ->check(Tool::named());
  verb.add_option("--verify", arguments->verify,
                  "How to check a copy that is in the cache: quick, full or off")
      ->capture_default_str();
  verb.add_option("--threads", arguments->threads, "Chunks to copy at a time, up to 32; 0: automatic")
      ->check(CLI::Range(0, 32));
  verb.add_option("--quota", arguments->quota, "Limit for the store, such as 100G; default: no limit");
  verb.add_option("--min-free", arguments->min_free,
                  "Space of the disk that a copy leaves free, such as 50G; default: none");
  verb.add_option("--keep", arguments->keep, "Seconds that an object stays after its last use; default: 600")
      ->check(CLI::Range(0, kMaxKeepSeconds));
  verb.add_option("--shared", arguments->shared, "A store to look into first");
  verb.add_option("--bandwidth", arguments->bandwidth,
                  "Limit for reading from sources, per second, such as 200M; default: no limit");
  verb.add_option(
          "--nodes", arguments->nodes,
          "HOST[:PORT] of each node that puts the same sources at the same time; each reads a part and passes it on")
      ->delimiter(',');
  verb.add_option("--node-id", arguments->node_id, "This node's place in --nodes, from 0");
  verb.add_option("--lanes", arguments->lanes,
                  "With --nodes: connections to receive on at a time, up to 16; 0: automatic")
      ->check(CLI::Range(0, 16));
  verb.add_option(
          "--source-patience", arguments->call_timeout,
          "With --nodes: seconds after which a call to the source or to this node's disk that does not return fails the put; 0: 300, plus 1 for each node")
      ->check(CLI::Range(0, 86400));
  verb.add_option(
      "--key-file", arguments->key_file,
      "File with the secret that the nodes share; default: LOCKSTEP_RENDEZVOUS_KEY, else ~/.config/lockstep/nodes.key, made if it is missing");
}

}  // namespace lockstep::transfer
