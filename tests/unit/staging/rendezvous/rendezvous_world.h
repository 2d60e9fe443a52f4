// srun with its rendezvous, and the nodes of a step, in one process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/rendezvous/rendezvous_server.h"

namespace lockstep::transfer {

using std::chrono::milliseconds;

inline constexpr const char* kKey = "the step's one-time key";
inline constexpr milliseconds kLong{60'000};
inline constexpr milliseconds kProgressInterval{2000};

inline UniqueFd bound_socket(int& port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail_errno("no socket");
  }
  port = ntohs(address.sin_port);
  return socket;
}

/// srun with its rendezvous, on a thread. It ends with the object.
class Srun {
 public:
  explicit Srun(milliseconds join_timeout = kLong, milliseconds reconnect_timeout = milliseconds(50),
                milliseconds silence_timeout = kLong) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("no pipe");
    alive_.reset(ends[0]);
    ours_.reset(ends[1]);
    RendezvousServer::Options options;
    options.key = kKey;
    options.join_timeout = join_timeout;
    options.failure_window = milliseconds(50);
    options.reconnect_timeout = reconnect_timeout;
    options.silence_timeout = silence_timeout;
    options.progress_interval = kProgressInterval;
    options.progress = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      progress_.push_back(line);
    };
    options.report = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
    server_.emplace(bound_socket(port_), options);
    thread_ = std::thread([this] {
      server_->run(alive_);
      server_.reset();  // closes its connections, as a process that ends does
    });
  }
  ~Srun() { end(); }
  void end() {
    ours_.reset();
    if (thread_.joinable()) thread_.join();
  }
  RendezvousAddress address() const { return {port_, {"127.0.0.1"}, kKey}; }
  int port() const { return port_; }
  std::vector<std::string> progress() {
    const std::lock_guard lock(mutex_);
    return progress_;
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  UniqueFd alive_, ours_;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<std::string> lines_, progress_;
  std::optional<RendezvousServer> server_;
  std::thread thread_;
};

inline Hello hello(std::uint32_t id, std::uint32_t nodes, std::uint32_t job = 7) {
  return {job, "0", fmt::format("n{}", id + 1), id, nodes, fmt::format("n[1-{}]", nodes), ""};
}

inline const auto kIgnore = [](const std::string&) {};

/// A node whose staging takes no time.
inline std::future<Verdict> node(const Srun& srun, const Hello& who, const Verdict& outcome) {
  return std::async(std::launch::async, [address = srun.address(), who, outcome] {
    return Rendezvous(address, who, kIgnore).agree(outcome);
  });
}

inline void expect_two_nodes_agree(const Srun& srun) {
  std::future<Verdict> first = node(srun, hello(0, 2), {true, ""});
  std::future<Verdict> second = node(srun, hello(1, 2), {true, ""});
  EXPECT_TRUE(first.get().good);
  EXPECT_TRUE(second.get().good);
}

}  // namespace lockstep::transfer
