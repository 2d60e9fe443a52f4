#include "common/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/leaf/network.h"

namespace lockstep {
namespace {

void set(const UniqueFd& socket, int level, int name, int value) {
  // These options are optional: the connection also works on a kernel that lacks one of them.
  ::setsockopt(socket.get(), level, name, &value, sizeof value);
}

void set_flags(const UniqueFd& socket, int set_bits, int clear_bits) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, (flags | set_bits) & ~clear_bits) < 0) {
    fail_errno("cannot set up a socket");
  }
}

// Returns an empty descriptor, with errno, if it cannot connect.
UniqueFd try_address(const addrinfo& address, std::chrono::milliseconds timeout) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return {};
    pollfd wait{socket.get(), POLLOUT, 0};
    if (::poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) {
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

void notice_dead_peer(const UniqueFd& socket, std::chrono::seconds within) {
  // An idle connection is probed nine times, so an outage of the network for 4/5 of the time does not end it. With
  // TCP_USER_TIMEOUT the kernel looks at the time since the last answer, not at the number of probes.
  constexpr int kProbes = 9;
  const int seconds = static_cast<int>(within.count());
  const int interval = seconds / (kProbes + 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

void send_all(const UniqueFd& socket, std::string_view bytes, const char* peer) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("lost {}", peer);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

std::string local_address(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  const std::string name = address_text(reinterpret_cast<const sockaddr&>(address));
  // The prefix of an IPv4 address on a socket for both families.
  constexpr std::string_view kMapped = "::ffff:";
  return name.starts_with(kMapped) ? name.substr(kMapped.size()) : name;
}

std::string client_of(const sockaddr& address) {
  constexpr const char* kLoopback = "loopback";
  const auto bytes = [](const void* begin, std::size_t count) {
    return std::string(static_cast<const char*>(begin), count);
  };
  std::string v4;
  if (address.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(&v6)) return kLoopback;
    if (!IN6_IS_ADDR_V4MAPPED(&v6)) return bytes(&v6, 8);
    v4 = bytes(&v6.s6_addr[12], 4);
  } else {
    v4 = bytes(&reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return v4.front() == IN_LOOPBACKNET ? kLoopback : v4;
}

std::string client_of(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return client_of(reinterpret_cast<const sockaddr&>(address));
}

UniqueFd listen_on(int first, int last, int& port) {
  for (int candidate = first; candidate <= last; ++candidate) {
    UniqueFd socket = bind_port(candidate, candidate, true, port);
    if (socket && ::listen(socket.get(), SOMAXCONN) == 0) return socket;
    if (no_descriptor_left(errno)) fail("cannot listen on a port: {}", kNoDescriptorLeft);
  }
  fail_errno("cannot listen on a port from {} to {}", first, last);
}

UniqueFd connect_to(const std::vector<std::string>& hosts, int port, std::chrono::milliseconds timeout,
                    const char* peer) {
  std::string tried;
  for (const std::string& host : hosts) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    if (error == EAI_SYSTEM && no_descriptor_left(errno))
      fail("cannot reach {}: {}", peer, kNoDescriptorLeft);
    std::string why = error != 0 ? ::gai_strerror(error) : "no address";
    for (const addrinfo* address = error == 0 ? found : nullptr; address != nullptr;
         address = address->ai_next) {
      UniqueFd socket = try_address(*address, timeout);
      if (socket) {
        notice_dead_peer(socket);
        return socket;
      }
      if (no_descriptor_left(errno)) fail("cannot reach {}: {}", peer, kNoDescriptorLeft);
      why = errno_text(errno);
    }
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : ", ", host, why);
  }
  fail("cannot reach {} at port {} ({}): check the firewall and 'ports' in lockstep.conf", peer, port, tried);
}

}  // namespace lockstep
