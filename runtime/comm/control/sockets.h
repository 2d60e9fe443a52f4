// Sockets of the control channel: how a rank listens, connects, and checks that the other end belongs to its
// job. The ranks exchange the key of a connection over MPI. The name of a local socket cannot be guessed, and
// the other end must be the same user.
//
// Threads: safe from any; a socket is used by one thread at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "common/files.h"

namespace lockstep::comm::control {

using Key = std::array<std::uint8_t, 16>;
Key random_key();

/// Where a process is reached over TCP. Of fixed size, so that ranks can exchange it.
struct Addresses {
  struct Address {
    std::uint8_t family = 0;  ///< 4 or 6; 0: none
    std::array<std::uint8_t, 16> bytes{};
  };
  std::uint16_t port = 0;
  std::array<Address, 8> list{};
};

/// After how long without an answer another node counts as unreachable.
inline constexpr std::chrono::seconds kUnreachableTime{10};

/// Listens under an abstract local name made of the key. Empty, with errno set, if that fails.
UniqueFd listen_locally(const Key& name);
UniqueFd connect_locally(const Key& name);

/// Whether this process is the first of its node that calls it: of the ranks that find the same failure at
/// the same time, one prints it.
bool is_first_to_print(const Key& name);

/// Listens on a free port of all interfaces and fills `addresses`. Empty, with errno set, if that fails.
UniqueFd listen_on_network(Addresses& addresses);

/// Tries all addresses at once and returns the first connection to a process that has the key. Empty, with
/// `why`, if there is none.
UniqueFd connect_on_network(const Addresses& addresses, const Key& key, int rank, std::string& why);

/// Sends this rank's introduction and waits until the other side has accepted it.
bool introduce(const UniqueFd& socket, const Key& key, int rank, std::chrono::milliseconds timeout);

/// The rank that introduces itself with this key; -1 for any other process. `local`: it must be this user's.
int receive_introduction(const UniqueFd& socket, const Key& key, bool local,
                         std::chrono::milliseconds timeout);
/// Tells the other side that its introduction is accepted.
bool accept_introduction(const UniqueFd& socket);

}  // namespace lockstep::comm::control
