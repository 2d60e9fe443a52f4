// The names of this machine, TCP ports for listening, and IP networks in CIDR notation, such as 10.1.0.0/16 or fd00::/8.
//
// Threads: safe from any.
#pragma once

#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/leaf/unique_fd.h"

namespace lockstep {

/// The full host name. Other machines can reach this one by it.
std::string full_host_name();

/// The host name up to the first dot: the node's name if Slurm does not give one.
std::string host_name();

inline constexpr int kMaxPort = 65535;

/// Binds a TCP socket to a free port from `first` to `last` (0 and 0: any) and sets `port`. The socket does
/// not listen yet. Empty if no port is free. With `reuse`, a port also counts as free while its old
/// connections time out, and while another such socket is bound to it without listening.
UniqueFd bind_port(int first, int last, bool reuse, int& port);

/// The port that a TCP socket is bound to; 0 if it is unknown.
int bound_port(const UniqueFd& socket);

/// An IP address as digits; "" for another kind of address.
std::string address_text(const sockaddr& address);

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
