#include "staging/transfer/rendezvous_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

void set(const UniqueFd& socket, int level, int name, int value) {
  // Only comforts: a kernel without one of them still carries the connection.
  ::setsockopt(socket.get(), level, name, &value, sizeof value);
}

void set_flags(const UniqueFd& socket, int set_bits, int clear_bits) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, (flags | set_bits) & ~clear_bits) < 0) {
    fail_errno("cannot set up a socket");
  }
}

// Empty when it did not work; errno says why.
UniqueFd try_address(const addrinfo& address, std::chrono::milliseconds patience) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return {};
    pollfd wait{socket.get(), POLLOUT, 0};
    if (::poll(&wait, 1, static_cast<int>(patience.count())) <= 0) {
      errno = ETIMEDOUT;
      return {};
    }
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      errno = error;
      return {};
    }
  }
  set_flags(socket, 0, O_NONBLOCK);
  return socket;
}

}  // namespace

void set_nonblocking(const UniqueFd& socket) {
  set_flags(socket, O_NONBLOCK, 0);
}

void notice_dead_peer(const UniqueFd& socket) {
  constexpr int kIdleSeconds = 10;
  constexpr int kProbeSeconds = 5;
  constexpr int kProbes = 3;
  constexpr int kUnansweredMilliseconds = 25'000;
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMilliseconds);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

UniqueFd connect_to(const std::vector<std::string>& hosts, int port, std::chrono::milliseconds patience) {
  std::string tried;
  for (const std::string& host : hosts) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    std::string why = error != 0 ? ::gai_strerror(error) : "no address";
    for (const addrinfo* address = error == 0 ? found : nullptr; address != nullptr;
         address = address->ai_next) {
      UniqueFd socket = try_address(*address, patience);
      if (socket) {
        notice_dead_peer(socket);
        return socket;
      }
      why = errno_text(errno);
    }
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : ", ", host, why);
  }
  fail("cannot reach srun's rendezvous at port {} ({}); 'ports' in lockstep.conf says which ports it may use",
       port, tried);
}

}  // namespace lockstep::transfer
