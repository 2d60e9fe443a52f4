#include "staging/rendezvous/rendezvous_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
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

void send_all(const UniqueFd& socket, std::string_view bytes, const char* whom) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("lost {}", whom);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

std::string local_address(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string name = text.data();
  // An IPv4 peer of a socket for both families.
  constexpr std::string_view kMapped = "::ffff:";
  return name.starts_with(kMapped) ? name.substr(kMapped.size()) : name;
}

UniqueFd listen_on(int first, int last, int& port) {
  // One socket for both families where the machine has both.
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool six = static_cast<bool>(socket);
  if (!six) socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) fail_errno("cannot open a socket");
  if (six) set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  for (int candidate = first; candidate <= last; ++candidate) {
    sockaddr_in6 address6{};
    address6.sin6_family = AF_INET6;
    address6.sin6_port = htons(static_cast<std::uint16_t>(candidate));
    sockaddr_in address4{};
    address4.sin_family = AF_INET;
    address4.sin_port = htons(static_cast<std::uint16_t>(candidate));
    const auto* const address =
        six ? reinterpret_cast<const sockaddr*>(&address6) : reinterpret_cast<const sockaddr*>(&address4);
    if (::bind(socket.get(), address, six ? sizeof address6 : sizeof address4) != 0) continue;
    if (::listen(socket.get(), SOMAXCONN) != 0) continue;
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    // The port stands at the same place in both families' addresses.
    port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
    return socket;
  }
  fail("no port from {} to {} is free for the exchange between nodes", first, last);
}

UniqueFd connect_to(const std::vector<std::string>& hosts, int port, std::chrono::milliseconds patience,
                    const char* whom) {
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
  fail("cannot reach {} at port {} ({}); 'ports' in lockstep.conf says which ports may be used", whom, port,
       tried);
}

}  // namespace lockstep::transfer
