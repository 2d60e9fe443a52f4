// One connection of the exchange: lines over TLS, some of them followed by bytes (exchange.h lists them).
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/files.h"
#include "staging/rendezvous/running_time.h"
#include "staging/rendezvous/secure_connection.h"

namespace lockstep::transfer {

struct PeerTimeouts {
  std::chrono::milliseconds silence{5000};  ///< after it, the rendezvous is asked whether the node is lost
  std::chrono::milliseconds chunk{30'000};  ///< for one chunk to be sent or received
  std::chrono::milliseconds look{20};  ///< between two looks at what the other side, or another thread, wants
};

class PeerLink {
 public:
  enum class Role { server, client };

  /// Takes a connected socket.
  PeerLink(UniqueFd socket, Role role, const std::string& key, const std::string& step,
           const PeerTimeouts& timeouts);

  /// Both sides authenticate; returns the other's node id. Throws PeerError.
  std::uint32_t handshake(std::uint32_t own_node_id);

  /// Throws PeerError if the other side is lost, or does not take all of it in time.
  void send(const std::string& line, std::span<const std::byte> bytes = {});

  /// The next line; nullopt if none comes in time. Throws PeerError if the other side is lost.
  std::optional<std::string> receive(std::chrono::milliseconds wait);

  /// The bytes after a line. Throws PeerError if they stop, take too long in all, or are not what was sent.
  void receive_bytes(std::span<std::byte> into);

 private:
  std::string credential_of(Role role) const;

  SecureConnection connection_;
  Role role_;
  std::string step_;
  PeerTimeouts timeouts_;
};

std::vector<std::string> words_of(const std::string& line);
/// Throws PeerError if the word is not a number.
std::uint64_t parse_number(const std::string& word);

}  // namespace lockstep::transfer
