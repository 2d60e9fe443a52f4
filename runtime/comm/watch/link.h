// A connection of the control channel: whole messages over a stream socket that never blocks its thread. A
// forked child closes its copies, so that a connection ends when its rank does.
//
// Threads: each link belongs to one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/files.h"

namespace lockstep::comm::watch {

enum class Kind : std::uint32_t {
  overdue = 1,  ///< up: an operation took too long here (Overdue)
  ask,          ///< down: what are you doing?
  answer,       ///< up: statuses
  line,         ///< up: what to print, when several may want to say the same (text)
  gone,         ///< up: this rank's process has ended (i32)
  end,          ///< both ways: the job ends, the reason has been printed (i32 exit code)
  goodbye,      ///< both ways: this rank leaves World; the end of the connection is no alarm (statuses)
};

struct Message {
  Kind kind = Kind::ask;
  std::string body;
};

class Link {
 public:
  /// Takes a connected stream socket and makes it nonblocking.
  explicit Link(UniqueFd socket);
  ~Link();
  Link(Link&& other) noexcept = default;
  Link& operator=(Link&& other) noexcept = default;

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }

  /// Queues the message and sends what the socket takes now.
  void send(Kind kind, std::string_view body = {});
  bool has_unsent() const { return !unsent_.empty(); }
  void send_rest();

  enum class End : std::uint8_t {
    none,
    closed,  ///< the other process closed it or ended
    broken,  ///< the network says so, or the bytes make no sense: the other may be well
  };
  /// Reads what is there and appends whole messages, also those that came before the end.
  End receive(std::vector<Message>& messages);

  void close();

 private:
  UniqueFd socket_;
  std::string unsent_;
  std::string received_;
};

}  // namespace lockstep::comm::watch
