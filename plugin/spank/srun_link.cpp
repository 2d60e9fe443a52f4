#include "plugin/spank/srun_link.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr int kHighestPort = 65535;

bool try_port(int fd, int port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<std::uint16_t>(port));
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

bool try_port4(int fd, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // The port stands at the same place in both families' addresses.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

std::string SrunLink::encode() const {
  return std::to_string(port) + "," + key + "," + host + "," + folder;
}

SrunLink SrunLink::decode(const std::string& text) {
  SrunLink link;
  std::array<std::size_t, 3> comma{};
  std::size_t from = 0;
  for (std::size_t& at : comma) {
    at = text.find(',', from);
    if (at == std::string::npos) throw Refusal("srun and this node run different versions of the plugin");
    from = at + 1;
  }
  const char* const end = text.data() + comma[0];
  const auto [stop, error] = std::from_chars(text.data(), end, link.port);
  link.key = text.substr(comma[0] + 1, comma[1] - comma[0] - 1);
  link.host = text.substr(comma[1] + 1, comma[2] - comma[1] - 1);
  link.folder = text.substr(comma[2] + 1);
  const bool good_key =
      link.key.size() == 2 * kKeyBytes && link.key.find_first_not_of("0123456789abcdef") == std::string::npos;
  const bool good_host = link.host.find_first_of(" \t\n/") == std::string::npos;
  if (error != std::errc{} || stop != end || link.port < 0 || link.port > kHighestPort || !good_key ||
      !good_host || !link.folder.starts_with('/')) {
    throw Refusal("srun and this node run different versions of the plugin");
  }
  return link;
}

int bind_port(int first, int last, int& port) {
  // One socket for both families where the machine has both.
  int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool six = fd >= 0;
  if (!six) fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int off = 0;
  if (six) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  for (int candidate = first; candidate <= last; ++candidate) {
    if (six ? !try_port(fd, candidate) : !try_port4(fd, candidate)) continue;
    port = bound_port(fd);
    return fd;
  }
  ::close(fd);
  return -1;
}

std::string random_key() {
  std::array<unsigned char, kKeyBytes> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Refusal("the kernel gives no random numbers: " + errno_text(errno));
  }
  constexpr const char* kDigits = "0123456789abcdef";
  std::string key;
  for (const unsigned char byte : bytes) {
    key += kDigits[byte >> 4U];
    key += kDigits[byte & 15U];
  }
  return key;
}

}  // namespace lockstep::spank
