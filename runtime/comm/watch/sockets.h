// The sockets that the control channel begins with: how a rank listens, is found, and knows that the other
// end belongs to its job. The key of a connection travels over MPI; the local name cannot be guessed and the
// other side must be the same user.
//
// Threads: none shared.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "common/files.h"

namespace lockstep::comm::watch {

using Key = std::array<std::uint8_t, 16>;
Key random_key();

/// Where a process is reached over TCP: as ranks tell each other, in memory of a fixed size.
struct Addresses {
  struct Address {
    std::uint8_t family = 0;  ///< 4 or 6; 0: none
    std::array<std::uint8_t, 16> bytes{};
  };
  std::uint16_t port = 0;
  std::array<Address, 8> list{};
};

/// Listens under an abstract local name made of the key; empty where that does not work, with errno.
UniqueFd listen_locally(const Key& name);
UniqueFd connect_locally(const Key& name);

/// Whether this process is the first of its node to ask, until it ends: of ranks that find the same at once
/// one speaks.
bool is_first_to_speak(const Key& name);

/// Listens on all interfaces on a free port and says where; empty where that does not work, with errno.
UniqueFd listen_on_network(Addresses& addresses);

/// Tries all addresses at once; the first that shows itself to be the one that has the key is taken. Empty
/// where there is none, with `why`.
UniqueFd connect_on_network(const Addresses& addresses, const Key& key, int rank, std::string& why);

/// Says who connects; waits until the other side has agreed.
bool introduce(const UniqueFd& socket, const Key& key, int rank, std::chrono::milliseconds patience);

/// The rank that introduces itself with this key; -1 for anybody else. `local`: it must be this user's.
int admit(const UniqueFd& socket, const Key& key, bool local, std::chrono::milliseconds patience);
/// Agrees.
bool welcome(const UniqueFd& socket);

}  // namespace lockstep::comm::watch
