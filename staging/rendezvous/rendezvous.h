// A node's side of the rendezvous at srun: the node introduces itself before staging starts, reports how staging ended
// there, and learns the outcome of all nodes. A failure on another node reaches it at once, even while it stages.
//
// Threads: the object belongs to one thread. It starts another one, which listens to srun and tells srun
// every five seconds that this process is still running.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/rendezvous/secure_connection.h"

namespace lockstep::transfer {

struct RendezvousAddress {
  int port = 0;
  std::vector<std::string> hosts;  ///< tried in turn
  std::string key;
  std::chrono::milliseconds handshake_timeout{
      10'000};                             ///< for all attempts together, after the first connection
  std::string name = "srun's rendezvous";  ///< for messages
  bool prints_reasons = true;              ///< the server prints why the step has failed
};

class Rendezvous {
 public:
  /// Connects, authenticates and introduces this node. The listening thread calls `stop` when the step has failed, or when the
  /// connection to srun is lost, with the reason; with "" if srun prints it. Throws Error.
  Rendezvous(const RendezvousAddress& address, const Hello& hello,
             std::function<void(const std::string& why)> stop);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Contributes this node's data to a round and waits for the data of all nodes: an object by node id, with
  /// null for nodes that have left. Each round has a different name. Throws Error if srun is lost or the step
  /// has failed.
  nlohmann::json gather(const std::string& round, nlohmann::json data);

  /// Contributes the SourceState of each source, and waits for this node's part of the ring. `number` tells apart several
  /// calls. Throws as gather() does.
  RingPart states(std::size_t number, const std::string& states);
  /// Contributes the digest of what this node got ("" for nothing), whether it lacks sources, and who must check them. Throws
  /// as gather() does.
  Contents contents(std::size_t number, const std::string& digest, bool lacks,
                    const std::vector<Suspect>& suspects = {});

  /// The reason for which `stop` was called, or will be soon: calls that threw may be the first to notice it. Else nullopt.
  std::optional<std::string> stopped();

  /// Whether a node of the ring before this one has left, or srun does not hear from it.
  bool has_left(std::uint32_t node);

  /// Tells srun where other nodes reach this one: RingPart::Peer without the number. Throws as gather() does.
  void set_address(nlohmann::json address);

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
  nlohmann::json exchange(const std::string& round, nlohmann::json data);
  std::string read_line();
  void send(const std::string& payload);
  void listen();
  void receive(const std::string& payload);

  std::string name_;
  const bool prints_reasons_;
  std::unique_ptr<SecureConnection> connection_;
  std::mutex sending_;  // guards what is sent
  std::function<void(const std::string& why)> stop_;
  std::mutex mutex_;  // guards what was received: the members below
  std::condition_variable changed_;
  std::optional<Verdict> verdict_;
  std::map<std::string, nlohmann::json> rounds_;
  std::set<std::uint32_t> left_;
  std::string lost_;
  std::atomic<std::uint64_t> signs_of_life_ = 0;
  std::thread listener_;
};

}  // namespace lockstep::transfer
