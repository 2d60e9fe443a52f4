#include "common/leaf/port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace lockstep {
namespace {

bool try_port(int fd, bool six, int port) {
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in address4{};
  address4.sin_family = AF_INET;
  address4.sin_port = htons(static_cast<std::uint16_t>(port));
  return six ? ::bind(fd, reinterpret_cast<const sockaddr*>(&address6), sizeof address6) == 0
             : ::bind(fd, reinterpret_cast<const sockaddr*>(&address4), sizeof address4) == 0;
}

int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // The port is at the same place in the addresses of both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

UniqueFd bind_port(int first, int last, bool reuse, int& port) {
  // One socket serves IPv6 and IPv4 if the machine has both.
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool six = static_cast<bool>(socket);
  if (!six) socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const int on = 1;
  const int off = 0;
  if (six) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (reuse) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  for (int candidate = first; candidate <= last; ++candidate) {
    if (!try_port(socket.get(), six, candidate)) continue;
    port = bound_port(socket.get());
    return socket;
  }
  return {};
}

}  // namespace lockstep
