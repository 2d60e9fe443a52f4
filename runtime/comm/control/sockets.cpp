#include "runtime/comm/control/sockets.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "common/error.h"
#include "common/leaf/random.h"
#include "common/sockets.h"
#include "runtime/comm/timeout.h"

namespace lockstep::comm::control {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kIntroductionMagic = 0x6c6b7768;
constexpr std::uint32_t kAccepted = 0x6c6b7777;

struct Introduction {
  std::uint32_t magic = kIntroductionMagic;
  std::int32_t rank = 0;
  Key key{};
};

bool read_exactly(int fd, void* into, std::size_t bytes, milliseconds time) {
  OperationTimeout timeout(time);
  auto* to = static_cast<char*>(into);
  while (bytes > 0) {
    if (timeout.expired()) return false;
    pollfd wait{fd, POLLIN, 0};
    ::poll(&wait, 1, timeout.next_check_ms());
    const ssize_t got = ::recv(fd, to, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// Writes a few bytes to a new connection: they fit into the socket's buffer.
template <typename Message>
bool write_exactly(int fd, const Message& message) {
  return ::send(fd, &message, sizeof message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

sockaddr_un local_address(const Key& name, socklen_t& length, std::string text = "lockstep-") {
  for (const std::uint8_t byte : name) text += fmt::format("{:02x}", byte);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, text.data(), text.size());  // the leading zero makes it abstract
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

bool is_this_user(int fd) {
  ucred other{};
  socklen_t length = sizeof other;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == ::geteuid();
}

bool equal(const Key& left, const Key& right) {
  unsigned difference = 0;
  for (std::size_t byte = 0; byte < left.size(); ++byte)
    difference |= static_cast<unsigned>(left[byte] ^ right[byte]);
  return difference == 0;
}

// This machine's addresses; the loopback addresses only if there are no others.
void find_addresses(Addresses& addresses) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  std::size_t count = 0;
  for (const bool loopback : {false, true}) {
    if (loopback && count > 0) return;
    for (const ifaddrs* one = all; one != nullptr && count < addresses.list.size(); one = one->ifa_next) {
      if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
      if (((one->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
      auto& address = addresses.list.at(count);
      if (one->ifa_addr->sa_family == AF_INET) {
        address.family = 4;
        std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, 4);
        ++count;
      } else if (one->ifa_addr->sa_family == AF_INET6) {
        const in6_addr& bytes = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&bytes)) continue;
        address.family = 6;
        std::memcpy(address.bytes.data(), &bytes, 16);
        ++count;
      }
    }
  }
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress to_socket_address(const Addresses::Address& address, std::uint16_t port) {
  SocketAddress result;
  if (address.family == 4) {
    auto& ip = reinterpret_cast<sockaddr_in&>(result.storage);
    ip.sin_family = AF_INET;
    ip.sin_port = htons(port);
    std::memcpy(&ip.sin_addr, address.bytes.data(), 4);
    result.length = sizeof ip;
  } else {
    auto& ip = reinterpret_cast<sockaddr_in6&>(result.storage);
    ip.sin6_family = AF_INET6;
    ip.sin6_port = htons(port);
    std::memcpy(&ip.sin6_addr, address.bytes.data(), 16);
    result.length = sizeof ip;
  }
  return result;
}

// Bound to IPv6 and IPv4, or to IPv4 alone if the machine does not have IPv6.
UniqueFd bind_anywhere() {
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket) {
    const int off = 0;
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0) return socket;
  }
  socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) return {};
  return socket;
}

// Connects to all addresses at once and keeps only the first connection, since unused ones would delay the
// listener. Removes its address and those that failed from `addresses`.
UniqueFd connect_to_first(std::vector<Addresses::Address>& addresses, std::uint16_t port, std::string& why) {
  constexpr milliseconds kConnectTime{3000};
  std::vector<UniqueFd> sockets(addresses.size());
  const auto give_up = [&](std::size_t index) {
    sockets.erase(sockets.begin() + static_cast<std::ptrdiff_t>(index));
    addresses.erase(addresses.begin() + static_cast<std::ptrdiff_t>(index));
  };
  for (std::size_t index = addresses.size(); index-- > 0;) {
    const SocketAddress to = to_socket_address(addresses[index], port);
    sockets[index].reset(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (sockets[index] && (::connect(sockets[index].get(), to.get(), to.length) == 0 || errno == EINPROGRESS))
      continue;
    why = errno_text(errno);
    give_up(index);
  }
  OperationTimeout timeout(kConnectTime);
  while (!sockets.empty()) {
    if (timeout.expired()) {
      why = "no answer within 3 s";
      addresses.clear();
      return {};
    }
    std::vector<pollfd> waits;
    waits.reserve(sockets.size());
    for (const UniqueFd& socket : sockets) waits.push_back({socket.get(), POLLOUT, 0});
    ::poll(waits.data(), waits.size(), timeout.next_check_ms());
    for (std::size_t index = waits.size(); index-- > 0;) {
      if (waits[index].revents == 0) continue;
      UniqueFd socket = std::move(sockets[index]);
      give_up(index);
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error == 0) return socket;
      why = errno_text(error);
    }
  }
  return {};
}

}  // namespace

Key random_key() {
  Key key{};
  fill_random(key.data(), key.size());
  return key;
}

UniqueFd listen_locally(const Key& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = 0;
  const sockaddr_un address = local_address(name, length);
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return {};
  }
  return socket;
}

UniqueFd connect_locally(const Key& name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = local_address(name, length);
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return {};
  if (!is_this_user(socket.get())) {
    errno = EPERM;
    return {};
  }
  return socket;
}

bool is_first_to_print(const Key& name) {
  static const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = local_address(name, length, "lockstep-end-");
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 ||
         errno != EADDRINUSE;
}

UniqueFd listen_on_network(Addresses& addresses) {
  UniqueFd socket = bind_anywhere();
  if (!socket || ::listen(socket.get(), SOMAXCONN) != 0) return {};
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) return {};
  addresses.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                     : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  find_addresses(addresses);
  return socket;
}

UniqueFd connect_on_network(const Addresses& addresses, const Key& key, int rank, std::string& why) {
  constexpr milliseconds kAcceptTime{4000};
  why = "it has no network address";
  std::vector<Addresses::Address> untried;
  for (const auto& address : addresses.list) {
    if (address.family != 0) untried.push_back(address);
  }
  while (!untried.empty()) {
    UniqueFd socket = connect_to_first(untried, addresses.port, why);
    if (!socket) return {};
    notice_dead_peer(socket, kUnreachableTime);
    if (introduce(socket, key, rank, kAcceptTime)) return socket;
    why = "another process answers there";
  }
  return {};
}

bool introduce(const UniqueFd& socket, const Key& key, int rank, milliseconds timeout) {
  std::uint32_t answer = 0;
  return write_exactly(socket.get(), Introduction{.rank = rank, .key = key}) &&
         read_exactly(socket.get(), &answer, sizeof answer, timeout) && answer == kAccepted;
}

int receive_introduction(const UniqueFd& socket, const Key& key, bool local, milliseconds timeout) {
  if (local && !is_this_user(socket.get())) return -1;
  Introduction hello;
  if (!read_exactly(socket.get(), &hello, sizeof hello, timeout)) return -1;
  return hello.magic == kIntroductionMagic && equal(hello.key, key) ? hello.rank : -1;
}

bool accept_introduction(const UniqueFd& socket) {
  return write_exactly(socket.get(), kAccepted);
}

}  // namespace lockstep::comm::control
