#include "runtime/comm/control/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "common/error.h"
#include "runtime/comm/timeout.h"

namespace lockstep::comm::control {
namespace {

struct MessageHeader {
  std::uint32_t kind;
  std::uint32_t bytes;
};

constexpr std::uint32_t kMaxBody = 64U << 20;

// The descriptors that a forked child must close. Never destroyed, because threads may fork while the program
// exits.
struct OpenConnections {
  std::mutex mutex;
  std::vector<int> fds;
};

OpenConnections& open_connections() {
  static auto* const instance = [] {
    auto* connections = new OpenConnections;
    pthread_atfork([] { open_connections().mutex.lock(); }, [] { open_connections().mutex.unlock(); },
                   [] {
                     for (const int fd : open_connections().fds) ::close(fd);
                     open_connections().fds.clear();
                     open_connections().mutex.unlock();
                   });
    return connections;
  }();
  return *instance;
}

bool is_unreachable(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
}

}  // namespace

Connection::Connection(UniqueFd socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  OpenConnections& connections = open_connections();
  const std::scoped_lock lock(connections.mutex);
  connections.fds.push_back(socket_.get());
}

void Connection::close() {
  if (!socket_) return;
  OpenConnections& connections = open_connections();
  const std::scoped_lock lock(connections.mutex);
  std::erase(connections.fds, socket_.get());
  socket_.reset();
}

void Connection::send(MessageKind kind, std::string_view body) {
  if (!open()) return;
  const MessageHeader header{static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(body.size())};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof header);
  unsent_.append(body);
  send_rest();
}

void Connection::send_rest() {
  while (open() && !unsent_.empty()) {
    const ssize_t sent = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      unreachable_ = unreachable_ || is_unreachable(errno);
      unsent_.clear();  // receive() will see the end of the connection
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
}

Connection::End Connection::receive(std::vector<Message>& messages) {
  End end = End::none;
  std::array<char, 16384> part{};
  while (end == End::none) {
    const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), 0);
    if (got > 0) {
      received_.append(part.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno == ECONNRESET || errno == EPIPE) {
      end = unreachable_ ? End::unreachable : End::closed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (is_unreachable(errno)) {
      end = End::unreachable;
    } else if (errno != EINTR) {
      end = End::broken;
    }
  }
  std::size_t begin = 0;
  MessageHeader header{};
  while (received_.size() - begin >= sizeof header) {
    std::memcpy(&header, received_.data() + begin, sizeof header);
    if (header.bytes > kMaxBody) return End::broken;
    if (received_.size() - begin - sizeof header < header.bytes) break;
    messages.push_back(
        {static_cast<MessageKind>(header.kind), received_.substr(begin + sizeof header, header.bytes)});
    begin += sizeof header + header.bytes;
  }
  received_.erase(0, begin);
  return end;
}

void send_to_all(const std::vector<Connection*>& connections, MessageKind kind, std::string_view body,
                 std::chrono::milliseconds timeout) {
  for (Connection* connection : connections) connection->send(kind, body);
  OperationTimeout sending(timeout);
  for (;;) {
    std::vector<pollfd> waits;
    for (Connection* connection : connections) {
      connection->send_rest();
      if (connection->has_unsent()) waits.push_back({connection->fd(), POLLOUT, 0});
    }
    if (waits.empty() || sending.expired()) return;
    ::poll(waits.data(), waits.size(), sending.next_check_ms());
  }
}

std::string pack_number(std::int32_t number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

std::int32_t unpack_number(const std::string& body) {
  std::int32_t number = 0;
  if (body.size() != sizeof number) fail("a message of the control channel is damaged");
  std::memcpy(&number, body.data(), sizeof number);
  return number;
}

}  // namespace lockstep::comm::control
