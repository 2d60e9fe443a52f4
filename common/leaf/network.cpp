#include "common/leaf/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <memory>

#include "common/leaf/error.h"
#include "common/leaf/text.h"

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

std::size_t length_of(int family) {
  return family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
}

const unsigned char* bytes_of(const sockaddr& address) {
  const void* const bytes =
      address.sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return static_cast<const unsigned char*>(bytes);
}

}  // namespace

std::string full_host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    throw Error("cannot read the host name: " + errno_text(errno));
  }
  return name.data();
}

std::string host_name() {
  const std::string whole = full_host_name();
  return whole.substr(0, whole.find('.'));
}

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
    port = bound_port(socket);
    return socket;
  }
  return {};
}

int bound_port(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // The port is at the same place in the addresses of both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string address_text(const sockaddr& address) {
  const bool v6 = address.sa_family == AF_INET6;
  if (!v6 && address.sa_family != AF_INET) return "";
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(&address, v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), text.data(),
                                  text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

std::optional<Subnet> Subnet::parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {};
  const std::string address(text.substr(0, slash));
  Subnet result;
  result.family_ = address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  if (::inet_pton(result.family_, address.c_str(), result.bytes_.data()) != 1) return {};
  const std::optional<unsigned> bits = to_number<unsigned>(text.substr(slash + 1));
  if (!bits || *bits > 8 * length_of(result.family_)) return {};
  result.bits_ = *bits;
  return result;
}

bool Subnet::contains(const sockaddr& address) const {
  if (address.sa_family != family_) return false;
  const unsigned char* const bytes = bytes_of(address);
  for (unsigned bit = 0; bit < bits_; ++bit) {
    const unsigned mask = 0x80U >> (bit % 8);
    if (((bytes[bit / 8] ^ bytes_.at(bit / 8)) & mask) != 0) return false;
  }
  return true;
}

std::string address_in(const std::vector<Subnet>& networks) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const Subnet& network : networks) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_RUNNING) == 0 ||
          !network.contains(*each->ifa_addr))
        continue;
      if (std::string text = address_text(*each->ifa_addr); !text.empty()) return text;
    }
  }
  return "";
}

}  // namespace lockstep
