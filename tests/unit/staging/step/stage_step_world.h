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
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/files.h"
#include "common/leaf/descriptors.h"
#include "staging/rendezvous/secure_connection.h"
#include "staging/step/request.h"
#include "tests/unit/staging/rendezvous/rendezvous_world.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::staging_test {

/// Where the nodes of a step find srun, as long as this object lives.
class SrunAddress {
 public:
  explicit SrunAddress(int port) { port_ = port; }
  ~SrunAddress() { port_ = 0; }
  SrunAddress(const SrunAddress&) = delete;
  SrunAddress& operator=(const SrunAddress&) = delete;
  /// 0 without an object.
  static int port() { return port_; }

 private:
  static inline int port_ = 0;
};

/// The tasks of a step. Staging in the background ends with them.
class Tasks {
 public:
  Tasks() { ::fcntl(fd(), F_SETFD, 0); }  // the other end stays here
  int fd() const { return alive_.read_end.get(); }
  void end() { alive_.write_end.reset(); }

 private:
  Pipe alive_;
};

class StageStep : public StagingTest {
 protected:
  StageStep() {
    // Processes that a step leaves running become children of this one, so that it can wait for them.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    fs::create_directory(folder_ / "records");
  }

  fs::path data(const std::string& name, int node = 0) const {
    return folder_ / fmt::format("cache{}/jobs/7/data", node) / name;
  }

  /// `request` with what all steps of the tests have.
  transfer::StepRequest on_node(int node, transfer::StepRequest request,
                                const std::vector<std::string>& sources) const {
    request.job = 7;
    request.step = "0";
    request.node = fmt::format("n{}", node + 1);
    request.store = at(fmt::format("cache{}", node));
    request.sources = sources;
    request.srun_port = SrunAddress::port();
    request.srun_hosts = {"127.0.0.1"};
    request.key = transfer::kKey;
    fs::create_directories(request.store);
    return request;
  }
  /// The same on one of `count` nodes.
  transfer::StepRequest on_node_of(int node, int count, transfer::StepRequest request,
                                   const std::vector<std::string>& sources) const {
    request.node_id = static_cast<std::uint32_t>(node);
    request.nodes = static_cast<std::uint32_t>(count);
    request.node_list = fmt::format("n[1-{}]", count);
    return on_node(node, std::move(request), sources);
  }
  /// In a child process: its errors go to "error.NODE".
  void redirect_errors(int node) const {
    const int out = ::open(at(fmt::format("error.{}", node)).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, STDERR_FILENO);
  }
  /// Starts `lockstep-stage step` with this standard input; its output goes to "error.NODE".
  pid_t start_with_input(const std::string& text, int node = 0) const {
    return start_child([&] {
      const UniqueFd input(::memfd_create("input", MFD_CLOEXEC));
      if (::write(input.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        fail_errno("memfd");
      ::lseek(input.get(), 0, SEEK_SET);
      ::dup2(input.get(), STDIN_FILENO);
      redirect_errors(node);
      ::execl(LOCKSTEP_STAGE, LOCKSTEP_STAGE, "step", nullptr);
      ::_exit(127);
    });
  }
  /// Starts the step on a node; its output goes to "error.NODE".
  pid_t start(const transfer::StepRequest& request, const std::vector<std::string>& sources,
              int node = 0) const {
    return start_with_input(to_text(on_node(node, request, sources)), node);
  }
  /// Starts the step on nodes 0 … count - 1. The records of node i go to records[i], if there is one.
  std::vector<pid_t> start_nodes(int count, const transfer::StepRequest& request,
                                 const std::vector<std::string>& sources,
                                 const std::vector<std::string>& records = {}) const {
    std::vector<pid_t> nodes;
    for (int node = 0; node < count; ++node) {
      transfer::StepRequest own = on_node_of(node, count, request, sources);
      if (const auto i = static_cast<std::size_t>(node); i < records.size()) own.record = records[i];
      nodes.push_back(start_with_input(to_text(own), node));
    }
    return nodes;
  }
  void expect_ends(const std::vector<pid_t>& nodes, int code) const {
    for (std::size_t node = 0; node < nodes.size(); ++node)
      EXPECT_EQ(end_of(nodes[node]), code) << said(static_cast<int>(node));
  }
  int step(const transfer::StepRequest& request, const std::vector<std::string>& sources,
           int node = 0) const {
    return end_of(start(request, sources, node));
  }
  /// Starts the step, which stages in the background until `tasks` end; what stages becomes a child of this process.
  int step_in_background(const Tasks& tasks, const std::vector<std::string>& sources,
                         const transfer::StepRequest& request = {}) const {
    return step(in_background(tasks, request), sources);
  }
  static transfer::StepRequest in_background(const Tasks& tasks, transfer::StepRequest request = {}) {
    request.mode = transfer::StepMode::background;
    request.watch_fd = tasks.fd();
    return request;
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

  /// A locked file for the lease, as slurmstepd makes it.
  UniqueFd lease(const std::string& step) const {
    fs::create_directories(folder_ / "cache0/leases/held");
    fs::permissions(folder_ / "cache0", fs::perms::owner_all);
    UniqueFd lock = open_file(lease_file(step), O_RDWR | O_CREAT, 0600);
    if (::flock(lock.get(), LOCK_SH) != 0) fail_errno("flock");
    return lock;
  }
  std::string lease_file(const std::string& step) const { return at("cache0/leases/held/" + step); }
};

/// srun's side of a step whose nodes are processes.
class StepSrun : public transfer::Srun {
  static constexpr std::chrono::seconds kTlsTimeout{30};

  // A node is forked while the server's thread runs. If that thread holds a lock of OpenSSL at that moment, as it does
  // while it sets up its first connection, the node waits for that lock for ever.
  static void set_up_openssl() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail_errno("socketpair");
    transfer::SecureConnection server(UniqueFd(ends[0]), "first", transfer::kKey);
    std::thread client([end = ends[1]] {
      transfer::SecureConnection(UniqueFd(end), "first", transfer::kKey).connect("n", kTlsTimeout);
    });
    server.accept(kTlsTimeout);
    client.join();
  }

 public:
  explicit StepSrun(std::chrono::milliseconds drain = {})
      : Srun(transfer::kLong, std::chrono::seconds(2), std::chrono::seconds(15),
             std::chrono::milliseconds(300), drain) {
    set_up_openssl();
  }
  /// Ends srun; returns the lines that it has printed.
  std::string end() {
    Srun::end();
    address_.reset();
    std::string said;
    for (const std::string& line : lines()) said += line + "\n";
    return said;
  }

 private:
  std::optional<SrunAddress> address_{port()};
};

}  // namespace lockstep::staging_test
