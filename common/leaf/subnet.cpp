#include "common/leaf/subnet.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <memory>

#include "common/leaf/number.h"

namespace lockstep {
namespace {

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

std::string text_of(const sockaddr& address) {
  const socklen_t length = address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(&address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

}  // namespace

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
      if (std::string text = text_of(*each->ifa_addr); !text.empty()) return text;
    }
  }
  return "";
}

}  // namespace lockstep
