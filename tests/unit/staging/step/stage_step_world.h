// Starts `lockstep-stage step` as the plugin does, and srun's side of it.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/files.h"
#include "common/sockets.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "staging/rendezvous/secure_connection.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::staging_test {

inline constexpr const char* kKey = "0123";

/// The tasks of a step. Staging in the background ends with them.
class Tasks {
 public:
  Tasks() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
    alive_.reset(ends[0]);
    end_.reset(ends[1]);
    ::fcntl(alive_.get(), F_SETFD, 0);  // the other end stays here
  }
  int fd() const { return alive_.get(); }
  std::string word() const { return std::to_string(fd()); }
  void end() { end_.reset(); }

 private:
  UniqueFd alive_, end_;
};

class StageStep : public StagingTest {
 protected:
  StageStep() {
    // Processes that a step leaves running become children of this one, so that it can wait for them.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    fs::create_directory(folder_ / "records");
  }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  fs::path data(const std::string& name, int node = 0) const {
    return folder_ / fmt::format("cache{}/jobs/7/data", node) / name;
  }

  /// A pack of several shards of about 5 MB.
  fs::path make_big_pack(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (int i = 0; i < 15; ++i)
      files[fmt::format("{:02}", i)] = std::string(1'000'000, static_cast<char>('a' + i));
    return make_pack(name, files, 5'000'000);
  }

  /// Starts the step on a node; its output goes to "error.NODE".
  pid_t start(const std::vector<std::string>& more, const std::vector<std::string>& sources,
              int node = 0) const {
    std::vector<std::string> words{
        LOCKSTEP_STAGE, "step", "--cache", at(fmt::format("cache{}", node)), "--job", "7",
        "--step",       "0",    "--node",  fmt::format("n{}", node + 1)};
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("--names-from-stdin");
    std::string names(1, '\0');  // no problem
    for (const std::string& source : sources) names += source + '\0';
    fs::create_directories(at(fmt::format("cache{}", node)));
    return start_child([&] {
      const UniqueFd input(::memfd_create("input", MFD_CLOEXEC));
      if (::write(input.get(), names.data(), names.size()) != static_cast<ssize_t>(names.size()))
        fail_errno("memfd");
      ::lseek(input.get(), 0, SEEK_SET);
      ::dup2(input.get(), STDIN_FILENO);
      const int out = ::open(at(fmt::format("error.{}", node)).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(out, STDERR_FILENO);
      std::vector<char*> arguments;
      arguments.reserve(words.size() + 1);
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      ::execv(LOCKSTEP_STAGE, arguments.data());
      ::_exit(127);
    });
  }
  /// Starts the step on nodes 0 … count - 1. `of_node` gives further options of one node.
  std::vector<pid_t> start_nodes(
      int count, const std::vector<std::string>& more, const std::vector<std::string>& sources,
      const std::function<std::vector<std::string>(int node)>& of_node = {}) const {
    std::vector<pid_t> nodes;
    for (int node = 0; node < count; ++node) {
      std::vector<std::string> words{"--nodes",     std::to_string(count),
                                     "--node-id",   std::to_string(node),
                                     "--node-list", fmt::format("n[1-{}]", count)};
      words.insert(words.end(), more.begin(), more.end());
      const std::vector<std::string> own = of_node ? of_node(node) : std::vector<std::string>();
      words.insert(words.end(), own.begin(), own.end());
      nodes.push_back(start(words, sources, node));
    }
    return nodes;
  }
  void expect_ends(const std::vector<pid_t>& nodes, int code) const {
    for (std::size_t node = 0; node < nodes.size(); ++node)
      EXPECT_EQ(end_of(nodes[node]), code) << said(static_cast<int>(node));
  }
  int step(const std::vector<std::string>& more, const std::vector<std::string>& sources,
           int node = 0) const {
    return end_of(start(more, sources, node));
  }
  /// Starts the step, which stages in the background until `tasks` end; what stages becomes a child of this process.
  int step_in_background(const Tasks& tasks, const std::vector<std::string>& sources,
                         std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--mode", "background", "--watch-fd", tasks.word()});
    return step(more, sources);
  }
  /// Waits for what stages in the background, which must end with code 0.
  static void wait_for_helper() {
    int status = 0;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  std::string said(int node = 0) const { return read(at(fmt::format("error.{}", node))); }
  static std::ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

  nlohmann::json record() const {
    return nlohmann::json::parse(read_text_file(folder_ / "records/staging.json"));
  }

  /// A locked file for --lease, as slurmstepd makes it.
  UniqueFd lease(const std::string& step) const {
    fs::create_directories(folder_ / "cache0/leases/held");
    fs::permissions(folder_ / "cache0", fs::perms::owner_all);
    UniqueFd lock = open_file(lease_file(step), O_RDWR | O_CREAT, 0600);
    if (::flock(lock.get(), LOCK_SH) != 0) fail_errno("flock");
    return lock;
  }
  std::string lease_file(const std::string& step) const { return at("cache0/leases/held/" + step); }
};

/// Where the nodes of a step look for srun, as long as this object lives.
class SrunAddress {
 public:
  explicit SrunAddress(int port) {
    ::setenv("LOCKSTEP_RENDEZVOUS", fmt::format("{} 127.0.0.1", port).c_str(), 1);
    ::setenv("LOCKSTEP_RENDEZVOUS_KEY", kKey, 1);
  }
  ~SrunAddress() { ::unsetenv("LOCKSTEP_RENDEZVOUS"); }
  SrunAddress(const SrunAddress&) = delete;
  SrunAddress& operator=(const SrunAddress&) = delete;
};

/// srun's side of a step of several nodes.
class Srun {
  // A node is forked while the server's thread runs. If that thread holds a lock of OpenSSL at that moment, as it does
  // while it sets up its first connection, the node waits for that lock for ever.
  static void set_up_openssl() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail_errno("socketpair");
    transfer::SecureConnection server(UniqueFd(ends[0]), "first", kKey);
    std::thread client([end = ends[1]] {
      transfer::SecureConnection(UniqueFd(end), "first", kKey).connect("n", kTlsTimeout);
    });
    server.accept(kTlsTimeout);
    client.join();
  }
  static constexpr std::chrono::seconds kTlsTimeout{30};

 public:
  explicit Srun(std::chrono::milliseconds drain = transfer::RendezvousServer::Options().drain_timeout) {
    int port = 0;
    UniqueFd socket = listen_on(0, 0, port);
    address_.emplace(port);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
    alive_.reset(ends[0]);
    end_.reset(ends[1]);
    transfer::RendezvousServer::Options options;
    options.key = kKey;
    options.drain_timeout = drain;
    options.reconnect_timeout = std::chrono::seconds(2);
    options.report = [this](const std::string& line) { said_ += line + "\n"; };
    server_ = std::make_unique<transfer::RendezvousServer>(std::move(socket), options);
    set_up_openssl();
    thread_ = std::thread([this] { server_->run(alive_); });
  }
  ~Srun() { end(); }
  /// Ends srun; returns the lines that it has printed.
  std::string end() {
    end_.reset();
    if (thread_.joinable()) thread_.join();
    server_.reset();  // as a process that ends, it closes its connections
    address_.reset();
    return said_;
  }

 private:
  std::optional<SrunAddress> address_;
  UniqueFd alive_, end_;
  std::string said_;
  std::unique_ptr<transfer::RendezvousServer> server_;
  std::thread thread_;
};

}  // namespace lockstep::staging_test
