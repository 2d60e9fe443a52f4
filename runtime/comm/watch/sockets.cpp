#include "runtime/comm/watch/sockets.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/error.h"

namespace lockstep::comm::watch {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kHello = 0x6c6b7768;
constexpr std::uint32_t kWelcome = 0x6c6b7777;

struct Hello {
  std::uint32_t magic = kHello;
  std::int32_t rank = 0;
  Key key{};
};

class Patience {
 public:
  explicit Patience(milliseconds time)
      : end_ns_(monotonic_ns() + static_cast<std::uint64_t>(time.count()) * 1'000'000) {}
  int left() const {
    const std::uint64_t now = monotonic_ns();
    return now >= end_ns_ ? 0 : static_cast<int>((end_ns_ - now) / 1'000'000 + 1);
  }

 private:
  std::uint64_t end_ns_;
};

bool read_exactly(int fd, void* into, std::size_t bytes, milliseconds time) {
  const Patience patience(time);
  auto* to = static_cast<char*>(into);
  while (bytes > 0) {
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, patience.left()) == 0) return false;
    const ssize_t got = ::recv(fd, to, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// Messages of a few bytes on a new connection: the socket's buffer takes them.
template <typename Message>
bool write_exactly(int fd, const Message& message) {
  return ::send(fd, &message, sizeof message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

sockaddr_un local_address(const Key& name, socklen_t& length, std::string text = "lockstep-") {
  for (const std::uint8_t byte : name) text += fmt::format("{:02x}", byte);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, text.data(), text.size());  // the zero in front makes it abstract
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

// This machine's addresses; the loopback's only where there is no other.
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

// A listening socket for IPv6 and IPv4, or for IPv4 where the machine has no other.
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

// Connects to all at once and keeps the first connection, so that the other side is not kept waiting by the
// others; its address, and those that do not work, are taken out.
UniqueFd connect_to_first(std::vector<Addresses::Address>& addresses, std::uint16_t port, std::string& why) {
  constexpr milliseconds kConnect{3000};
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
  const Patience patience(kConnect);
  while (!sockets.empty()) {
    std::vector<pollfd> waits;
    waits.reserve(sockets.size());
    for (const UniqueFd& socket : sockets) waits.push_back({socket.get(), POLLOUT, 0});
    if (::poll(waits.data(), waits.size(), patience.left()) == 0) {
      why = "no answer within 3 s";
      addresses.clear();
      return {};
    }
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
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size()))
    fail_errno("no random numbers");
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

bool is_first_to_speak(const Key& name) {
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
  constexpr milliseconds kAgree{4000};
  why = "it has no address";
  std::vector<Addresses::Address> untried;
  for (const auto& address : addresses.list) {
    if (address.family != 0) untried.push_back(address);
  }
  while (!untried.empty()) {
    UniqueFd socket = connect_to_first(untried, addresses.port, why);
    if (!socket) return {};
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (introduce(socket, key, rank, kAgree)) return socket;
    why = "somebody else answers there";
  }
  return {};
}

bool introduce(const UniqueFd& socket, const Key& key, int rank, milliseconds patience) {
  std::uint32_t answer = 0;
  return write_exactly(socket.get(), Hello{.rank = rank, .key = key}) &&
         read_exactly(socket.get(), &answer, sizeof answer, patience) && answer == kWelcome;
}

int admit(const UniqueFd& socket, const Key& key, bool local, milliseconds patience) {
  if (local && !is_this_user(socket.get())) return -1;
  Hello hello;
  if (!read_exactly(socket.get(), &hello, sizeof hello, patience)) return -1;
  return hello.magic == kHello && equal(hello.key, key) ? hello.rank : -1;
}

bool welcome(const UniqueFd& socket) {
  return write_exactly(socket.get(), kWelcome);
}

}  // namespace lockstep::comm::watch
