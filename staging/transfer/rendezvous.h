// A node's side of the rendezvous at srun: present yourself before staging starts, tell how it ended, learn
// what all nodes' came to. While this node is still staging, a failure elsewhere is noticed at once.
//
// Threads: the object belongs to one thread; it runs one of its own that listens to srun.
#pragma once

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"
#include "staging/transfer/rendezvous_outcome.h"
#include "staging/transfer/rendezvous_session.h"

namespace lockstep::transfer {

struct RendezvousAddress {
  int port = 0;
  std::vector<std::string> hosts;  ///< tried in turn
  std::string key;

  /// From LOCKSTEP_RENDEZVOUS ("PORT HOST...") and LOCKSTEP_RENDEZVOUS_KEY, as the plugin sets them. Throws
  /// Error where they are missing or make no sense.
  static RendezvousAddress from_environment();
};

class Rendezvous {
 public:
  /// Connects, proves itself and says hello. `stop` is called, from the listening thread, when the step has
  /// failed, with "" where srun says so (and has printed why), or with the reason where srun is lost. Throws
  /// Error.
  Rendezvous(const RendezvousAddress& address, const Hello& hello,
             std::function<void(const std::string& lost)> stop);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Tells how staging ended here and waits for all nodes' verdict. Throws Error where srun is lost.
  Verdict agree(const Verdict& outcome);

 private:
  std::string read_line();
  void listen();

  UniqueFd socket_;
  Session session_;
  std::string received_;
  std::function<void(const std::string& lost)> stop_;
  std::promise<Verdict> verdict_;
  std::thread listener_;
};

}  // namespace lockstep::transfer
