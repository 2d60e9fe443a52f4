// A connection of the control channel: whole messages over a stream socket that never blocks the thread. A
// forked child closes its copies, so a connection ends when its rank does.
//
// Threads: each connection is used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/files.h"

namespace lockstep::comm::control {

enum class MessageKind : std::uint32_t {
  overdue = 1,  ///< up: an operation took too long here (Overdue)
  ask,          ///< down: what are you doing?
  answer,       ///< up: statuses
  failure,      ///< up: the line to print about a failure that several ranks may report (text)
  rank_lost,    ///< up: the process of this rank has ended (i32)
  end,          ///< both ways: the job ends, the reason has been printed (i32 exit code)
  note,         ///< up: a text for rank 0 (i32 rank, text)
  goodbye,      ///< both ways: this rank leaves World; the end of its connection is not an error (statuses)
};

struct Message {
  MessageKind kind = MessageKind::ask;
  std::string body;
};

class Connection {
 public:
  /// Takes a connected stream socket and makes it nonblocking.
  explicit Connection(UniqueFd socket);
  ~Connection() { close(); }
  Connection(Connection&& other) noexcept = default;
  Connection& operator=(Connection&& other) noexcept = default;

  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }

  /// Queues the message and sends as much as the socket accepts now.
  void send(MessageKind kind, std::string_view body = {});
  bool has_unsent() const { return !unsent_.empty(); }
  void send_rest();

  enum class End : std::uint8_t {
    none,
    closed,       ///< the other process closed it or ended
    unreachable,  ///< the other machine stopped answering: it lost power, or is cut off
    broken,       ///< another network error, or damaged bytes; the other process may still run
  };
  /// Reads without waiting and appends complete messages, including those that arrived before the end.
  End receive(std::vector<Message>& messages);

  void close();

 private:
  UniqueFd socket_;
  std::string unsent_;
  std::string received_;
  bool unreachable_ = false;  // send_rest() found it; recv() does not report the error again
};

/// Queues the message on all connections and waits until it is sent, at most this long.
void send_to_all(const std::vector<Connection*>& connections, MessageKind kind, std::string_view body,
                 std::chrono::milliseconds timeout);

/// The body of a message that is a number.
std::string pack_number(std::int32_t number);
/// Throws Error for a damaged body.
std::int32_t unpack_number(const std::string& body);

}  // namespace lockstep::comm::control
