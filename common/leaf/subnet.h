// IP networks in CIDR notation, such as 10.1.0.0/16 or fd00::/8.
//
// Threads: safe from any.
#pragma once

#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class Subnet {
 public:
  /// nullopt if the text is not an address, '/' and a number of bits that fits the address.
  static std::optional<Subnet> parse(std::string_view text);

  bool contains(const sockaddr& address) const;

 private:
  int family_ = AF_INET;
  std::array<unsigned char, 16> bytes_{};  // in network order; an IPv4 address has four
  unsigned bits_ = 0;
};

/// The first address, as text, of this machine's running interfaces in the first of these networks that has one. ""
/// if there is none.
std::string address_in(const std::vector<Subnet>& networks);

}  // namespace lockstep
