// srun's side of the rendezvous. Every node of the step connects, reports how its staging ended, and
// receives the outcome of all nodes. Before and after that the nodes may hold rounds: each node contributes
// data, and when all remaining nodes have done so, each receives the data of all, or a short answer. A node learns at once
// that its predecessor in the ring has left. A node that fails, never comes, or disconnects and does not come back fails the step for all nodes. The line that says so is printed
// here, on srun's standard error, which is the job's output.
//
// Other users can connect too. A connection that has sent nothing for two seconds is dropped, and one that does not
// introduce itself after ten; of each address only so many wait at a time. A node that is dropped connects again.
//
// Threads: run() uses the calling thread only.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "common/files.h"
#include "staging/rendezvous/rendezvous_messages.h"

namespace lockstep::transfer {

class RendezvousServer {
 public:
  struct Options {
    std::string key;
    /// How long after the first node the last one may come. Then the step fails, and the report names the missing
    /// nodes.
    std::chrono::milliseconds join_timeout{60'000};
    /// How long further failures are collected after the first one, so that one line names all nodes.
    std::chrono::milliseconds failure_window{300};
    /// How long a node that disconnected without a reason may take to come back and report its outcome. (If the job is
    /// cancelled, srun ends earlier and prints nothing.)
    std::chrono::milliseconds reconnect_timeout{10'000};
    /// A node that sends nothing for this long, while others do, has stopped: nodes send something every
    /// five seconds. Time in which no node sends anything does not count: the step is suspended.
    std::chrono::milliseconds silence_timeout{15'000};
    /// How long nodes may take to receive the outcome after `alive` has ended.
    std::chrono::milliseconds drain_timeout{0};
    /// Receives the one line of a failed step.
    std::function<void(const std::string&)> report;
    /// Receives, this often at most, a line about the progress of all nodes.
    std::function<void(const std::string&)> progress;
    std::chrono::milliseconds progress_interval{10'000};
  };

  /// Listens on `socket`, which must be bound. Throws Error.
  RendezvousServer(UniqueFd socket, Options options);
  ~RendezvousServer();

  /// Serves until `alive`, a pipe that srun holds open, is closed.
  void run(const UniqueFd& alive);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer;
  struct Group;

  void accept_some();
  void accept_failed(int error);
  void read_from(Peer& peer);
  void receive_line(Peer& peer, const std::string& line);
  void receive_hello(Peer& peer, const std::string& text);
  void receive_round(Peer& peer, const std::string& payload);
  void receive_progress(Peer& peer, const nlohmann::json& message) const;
  void answer_complete_rounds(Group& group);
  void answer_states(Group& group, const std::string& round);
  void leaves(Group& group, std::uint32_t node);
  void send_all(const Group& group, const std::string& line);
  void find_silent(Group& group);
  void disconnected(Peer& peer);
  void add_failure(Group& group, const std::string& node, const std::string& why) const;
  void settle(Group& group, Clock::time_point now);
  void say_progress(Group& group);
  void decide(Group& group);
  bool watch(const UniqueFd& fd, int operation, unsigned events, void* what) const;
  void send(Peer& peer, const std::string& line) const;
  void flush(Peer& peer) const;
  int milliseconds_to_next(Clock::time_point now) const;

  UniqueFd socket_;
  UniqueFd epoll_;
  Options options_;
  std::list<Peer> peers_;
  std::map<std::string, Group> groups_;
  Clock::time_point next_accept_{};
  bool ran_out_of_descriptors_ = false;
};

}  // namespace lockstep::transfer
