// A node's side of the rendezvous at srun: the node introduces itself before staging starts, reports how staging ended
// there, and learns the outcome of all nodes. A failure on another node reaches it at once, even while it stages.
//
// Threads: the object belongs to one thread. It starts another one, which listens to srun and tells srun
// every second that this process is still running.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "staging/rendezvous/chain_directory.h"
#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/rendezvous/secure_connection.h"

namespace lockstep::transfer {

struct RendezvousAddress {
  int port = 0;
  std::vector<std::string> hosts;  ///< tried in turn
  std::string key;
  std::chrono::milliseconds handshake_timeout{10'000};  ///< for all attempts together
  std::string name = "srun's rendezvous";               ///< for messages

  /// From LOCKSTEP_RENDEZVOUS ("PORT HOST...") and LOCKSTEP_RENDEZVOUS_KEY, which the plugin sets. Throws
  /// Error if one of them is missing or invalid.
  static RendezvousAddress from_environment();
};

class Rendezvous {
 public:
  /// Connects, authenticates and introduces this node. The listening thread calls `stop` when the step has failed: with
  /// "" if srun says so (srun has then printed the reason), or with the reason if the connection to srun is lost. If
  /// the server does not print reasons, pass `failed`, which is called instead of stop(""). Throws Error.
  Rendezvous(const RendezvousAddress& address, const Hello& hello,
             std::function<void(const std::string& lost)> stop,
             std::function<void(const Verdict&)> failed = {});
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Contributes this node's data to a round and waits for the data of all nodes: an object by node id, with
  /// null for nodes that have left. Each round has a different name. Throws Error if srun is lost or the step
  /// has failed.
  nlohmann::json gather(const std::string& round, nlohmann::json data);

  /// Contributes the SourceState of each source, and waits for this node's parts of the chains. `batch` tells
  /// apart several calls. Throws as gather() does.
  std::vector<ChainPart> chains(const std::string& states, std::size_t batch);

  /// Tells srun that this node has passed over its predecessor in a chain of that batch: no data flows through it.
  /// Returns the next one. Throws Error if srun is lost or the step has failed.
  NextPredecessor pass_over(std::size_t batch, std::size_t chain, std::uint32_t predecessor);

  /// Whether the node has left, srun does not hear from it, or others have passed it over. Throws as pass_over() does.
  bool is_lost(std::uint32_t node);

  /// Tells srun where other nodes reach this one. Returns what another node has told it; null if that is nothing yet.
  /// Both throw as pass_over() does.
  void set_address(nlohmann::json address);
  nlohmann::json address_of(std::uint32_t node);

  /// Tells srun how far this node is; srun prints a line for all nodes. Does not wait, nor fail if srun is lost.
  void tell_progress(const NodeProgress& progress);

  /// The address of this end of the connection to srun. Other nodes may be able to reach this node there.
  std::string own_address() const;

  /// Closes the connection: this node has left.
  void leave();

  /// Bytes sent and received so far, without the signs of life, whose number depends on the time only.
  std::uint64_t bytes() const;

  /// Reports how staging ended here and waits for the verdict of all nodes. Throws Error if srun is lost.
  Verdict agree(const Verdict& outcome);

 private:
  nlohmann::json ask(nlohmann::json question);
  nlohmann::json exchange(const std::string& round, nlohmann::json data);
  std::string read_line();
  void send(const std::string& payload);
  void listen();
  void receive(const std::string& payload);

  std::string name_;
  std::unique_ptr<SecureConnection> connection_;
  std::mutex sending_;  // guards what is sent
  std::function<void(const std::string& lost)> stop_;
  std::function<void(const Verdict&)> failed_;
  std::mutex mutex_;  // guards what was received: the members below
  std::condition_variable changed_;
  std::optional<Verdict> verdict_;
  std::map<std::string, nlohmann::json> rounds_;
  std::map<std::uint32_t, nlohmann::json> addresses_;  // of predecessors
  std::string lost_;
  std::atomic<std::uint64_t> questions_ = 0;
  std::atomic<std::uint64_t> signs_of_life_ = 0;
  std::thread listener_;
};

}  // namespace lockstep::transfer
