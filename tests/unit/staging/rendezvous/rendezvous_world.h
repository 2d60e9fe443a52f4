// srun with its rendezvous, and the nodes of a step.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/leaf/network.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/rendezvous/rendezvous_server.h"

namespace lockstep::transfer {

using std::chrono::milliseconds;

inline constexpr const char* kKey = "the step's one-time key";
inline constexpr milliseconds kLong{60'000};
inline constexpr milliseconds kProgressInterval{2000};

inline UniqueFd bound_socket(int& port) {
  return bind_port(0, 0, false, port);
}

/// srun with its rendezvous, on a thread. It ends with the object.
class Srun {
 public:
  explicit Srun(milliseconds join_timeout = kLong, milliseconds reconnect_timeout = milliseconds(50),
                milliseconds silence_timeout = kLong, milliseconds failure_window = milliseconds(50),
                milliseconds drain_timeout = {}) {
    RendezvousServer::Options options;
    options.key = kKey;
    options.join_timeout = join_timeout;
    options.failure_window = failure_window;
    options.reconnect_timeout = reconnect_timeout;
    options.silence_timeout = silence_timeout;
    options.drain_timeout = drain_timeout;
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
      server_->run(alive_.read_end);
      server_.reset();  // closes its connections, as a process that ends does
    });
  }
  ~Srun() { end(); }
  void end() {
    alive_.write_end.reset();
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
  Pipe alive_;
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
