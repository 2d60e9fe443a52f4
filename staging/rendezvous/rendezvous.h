// A node's side of the rendezvous at srun: present yourself before staging starts, tell how it ended, learn
// what all nodes' came to. While this node is still staging, a failure elsewhere is noticed at once.
//
// Threads: the object belongs to one thread; it runs one of its own that listens to srun, and tells it every
// second that this process is not stopped.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"
#include "staging/rendezvous/rendezvous_outcome.h"
#include "staging/rendezvous/rendezvous_session.h"

namespace lockstep::transfer {

struct RendezvousAddress {
  int port = 0;
  std::vector<std::string> hosts;  ///< tried in turn
  std::string key;
  std::chrono::milliseconds patience{10'000};  ///< for its greeting
  std::string name = "srun's rendezvous";      ///< for messages

  /// From LOCKSTEP_RENDEZVOUS ("PORT HOST...") and LOCKSTEP_RENDEZVOUS_KEY, as the plugin sets them. Throws
  /// Error where they are missing or make no sense.
  static RendezvousAddress from_environment();
};

class Rendezvous {
 public:
  /// Connects, proves itself and says hello. `stop` is called, from the listening thread, when the step has
  /// failed, with "" where srun says so (and has printed why), or with the reason where srun is lost. Where
  /// nobody prints, `failed` is called instead of stop(""). Throws Error.
  Rendezvous(const RendezvousAddress& address, const Hello& hello,
             std::function<void(const std::string& lost)> stop,
             std::function<void(const Verdict&)> failed = {});
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Says this node's word in a round and waits for everyone's: an object with null for nodes that have left.
  /// Each round has its own name. Throws Error where srun is lost, or the step has failed.
  nlohmann::json gather(const std::string& round, nlohmann::json data);

  /// This end's address in the connection to srun: one under which other nodes may reach this one.
  std::string own_address() const;

  /// Tells how staging ended here and waits for all nodes' verdict. Throws Error where srun is lost.
  Verdict agree(const Verdict& outcome);

 private:
  std::string read_line(std::optional<std::chrono::milliseconds> patience = {});
  void say(const std::string& payload);
  void listen();
  void take(const std::string& payload);

  std::string name_;
  UniqueFd socket_;
  Session session_;
  std::mutex saying_;  // of what is sent
  std::string received_;
  std::function<void(const std::string& lost)> stop_;
  std::function<void(const Verdict&)> failed_;
  std::mutex mutex_;  // of what was heard
  std::condition_variable heard_;
  std::optional<Verdict> verdict_;
  std::map<std::string, nlohmann::json> rounds_;
  std::string lost_;
  std::thread listener_;
};

}  // namespace lockstep::transfer
