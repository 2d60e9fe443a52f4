#include "tests/unit/staging/transfer/nodes_world.h"

#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "common/files.h"
#include "common/leaf/network.h"

namespace lockstep::transfer {

namespace fs = std::filesystem;

void have_own_mounts() {
  if (!staging_test::own_mounts()) fail_errno("cannot make a separate mount namespace");
}

void see_instead(const fs::path& place, const fs::path& other) {
  have_own_mounts();
  if (::mount(other.c_str(), place.c_str(), nullptr, MS_BIND, nullptr) != 0)
    fail_errno("cannot mount {} at {}", other.string(), place.string());
}

void NodesTest::start(int count, const fs::path& source, std::map<int, NodeChange> changes) {
  int port = 0;
  port_ = bind_port(0, 0, true, port);
  NodesOptions nodes;
  nodes.wait_seconds = wait_seconds_;
  nodes.peer_timeouts = peer_timeouts_;
  nodes.call_timeout = source_patience_;
  for (int node = 0; node < count; ++node)
    nodes.nodes.push_back(fmt::format("{}:{}", changes[node].host, node == 0 ? port : 0));
  for (int node = 0; node < count; ++node) {
    NodeChange& change = changes[node];
    if (change.absent) continue;
    const fs::path out = folder_ / fmt::format("out.{}", node);
    running_.push_back(staging_test::start_child([&] {
      const auto tell = [&](const nlohmann::json& what) {
        write_file_atomically(out, what.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
      };
      nodes.node_id = static_cast<std::uint32_t>(node);
      nodes.key = change.key;
      nodes.stop = [&](const std::string& why) {
        tell({{"error", why}});
        ::_exit(1);
      };
      try {
        if (change.before) change.before();
        PutOptions options;
        options.cache_dir = cache(node);
        options.file_system = change.system;
        options.sizes.chunk_bytes = staging_test::kChunk;
        options.sizes.mark_bytes = 8 * staging_test::kChunk;
        options.sizes.lanes = lanes_;
        options.threads = 2;
        if (change.options) change.options(options);
        if (change.instead) {
          change.instead(nodes);
          return;
        }
        const PutResult result = put_on_nodes({source.string()}, options, nodes).at(0);
        tell({{"path", result.path.string()},
              {"bytes", result.bytes},
              {"from_source", result.from_source},
              {"from_peers", result.from_peers},
              {"hit", result.hit},
              {"note", result.note}});
      } catch (const std::exception& error) {
        tell({{"error", error.what()}});
        ::_exit(1);
      }
    }));
  }
}

void stop_this_node() {
  ::kill(::getppid(), SIGSTOP);
  ::raise(SIGSTOP);
}

void NodesTest::wait_until_stopped(int node) const {
  const pid_t supervisor = running_[static_cast<std::size_t>(node)];
  int status = 0;
  ASSERT_EQ(::waitpid(supervisor, &status, WUNTRACED), supervisor);
  const fs::path out = folder_ / fmt::format("out.{}", node);
  ASSERT_TRUE(WIFSTOPPED(status)) << "it has ended: "
                                  << (fs::exists(out) ? read_text_file(out) : std::to_string(status));
}

void NodesTest::resume(int node) const {
  const pid_t supervisor = running_[static_cast<std::size_t>(node)];
  ::kill(staging_test::child_of(supervisor), SIGCONT);
  ::kill(supervisor, SIGCONT);
}

void NodesTest::start_until_the_last_stops(const fs::path& pack) {
  SourceReads stops(pack, [](const SourceRead& read) {
    if (read.of_shards == 1) stop_this_node();
  });
  start(3, pack, {{2, {.system = &stops}}});
  wait_until_stopped(2);
}

std::vector<NodeEnd> NodesTest::finish(std::chrono::seconds limit) {
  const auto late = std::chrono::steady_clock::now() + limit;
  std::vector<NodeEnd> ends;
  for (std::size_t node = 0; node < running_.size(); ++node) {
    siginfo_t about{};
    while (::waitid(P_PID, static_cast<id_t>(running_[node]), &about, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           about.si_pid == 0 && std::chrono::steady_clock::now() < late)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (about.si_pid == 0) ::kill(running_[node], SIGKILL);
    NodeEnd end;
    end.code = staging_test::end_of(running_[node]);
    const fs::path out = folder_ / fmt::format("out.{}", node);
    if (fs::exists(out)) {
      end.result = nlohmann::json::parse(read_text_file(out));
      end.error = end.result.value("error", "");
      fs::remove(out);
    }
    ends.push_back(std::move(end));
  }
  running_.clear();
  return ends;
}

PutResult NodesTest::put_alone(int node, const fs::path& source) const {
  PutOptions options;
  options.cache_dir = cache(node);
  options.sizes.chunk_bytes = staging_test::kChunk;
  return put({source.string()}, options).at(0);
}

std::uint64_t NodesTest::expect_good(const std::vector<NodeEnd>& ends, const fs::path& source) const {
  std::uint64_t from_source = 0;
  const auto content = staging_test::content_of(source);
  for (const NodeEnd& end : ends) {
    EXPECT_EQ(end.code, 0) << end.error;
    if (end.code != 0) continue;
    EXPECT_EQ(staging_test::content_of(end.result.at("path").get<std::string>()), content);
    from_source += end.result.at("from_source").get<std::uint64_t>();
  }
  return from_source;
}

}  // namespace lockstep::transfer
