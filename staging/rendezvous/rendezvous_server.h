// srun's side of the rendezvous: every node of the step connects, says how its staging ended, and is told
// what all nodes' came to. Before that, and after, they may hold rounds: each says a word, and when all who
// are still there have, everyone is told all of them. One node that fails, never comes, or breaks off and
// does not come back fails the step for all; the one line that says so is printed here, on srun's standard
// error, which is the job's output.
//
// Threads: run() uses the calling thread only.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "common/files.h"
#include "staging/rendezvous/rendezvous_outcome.h"
#include "staging/rendezvous/rendezvous_session.h"

namespace lockstep::transfer {

class RendezvousServer {
 public:
  struct Options {
    std::string key;
    /// How long the last node may come after the first; then it is named as missing.
    std::chrono::milliseconds wait{60'000};
    /// How long other nodes' failures are collected after the first, so that one line names them all.
    std::chrono::milliseconds collect{300};
    /// How long a node that broke off without a reason may take to come back and tell its outcome. Where the
    /// job is being cancelled, srun ends before anything has to be said.
    std::chrono::milliseconds silence{10'000};
    /// A node that says nothing for so long while others do (nodes say something every second) has stopped.
    std::chrono::milliseconds silent{15'000};
    /// How long nodes may take to hear the end after run() was told to return.
    std::chrono::milliseconds drain{0};
    /// Gets the one line of a failed step.
    std::function<void(const std::string&)> report;
  };

  /// `socket` is bound; it starts to listen. Throws Error.
  RendezvousServer(UniqueFd socket, Options options);
  ~RendezvousServer();

  /// Serves until `alive` (a pipe that srun holds open) comes to its end.
  void run(const UniqueFd& alive);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer;
  struct Group;

  void accept_one();
  void read_from(Peer& peer);
  void take_line(Peer& peer, const std::string& line);
  void take_word(Peer& peer, const std::string& payload);
  void tell_complete_rounds(Group& group);
  void find_silent(Group& group, Clock::time_point now);
  void take_hello(Peer& peer, const std::string& text);
  void lost(Peer& peer);
  void failed(Group& group, const std::string& node, const std::string& why) const;
  void settle(Group& group, Clock::time_point now);
  void decide(Group& group);
  static void send(Peer& peer, const std::string& bytes);
  static void flush(Peer& peer);
  int milliseconds_to_next(Clock::time_point now) const;

  UniqueFd socket_;
  Options options_;
  std::list<Peer> peers_;
  std::map<std::string, Group> groups_;
};

}  // namespace lockstep::transfer
