// One connection of the exchange: lines over TLS, some of them followed by bytes (exchange.h lists them).
//
// Threads: a PeerLink one at a time; functions are safe from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/files.h"
#include "staging/rendezvous/secure_connection.h"
#include "staging/transfer/exchange/ring_node.h"

namespace lockstep::transfer {

/// A credential of munge for `text`, which proves which user is at the other end of a connection: only the same user can decode
/// it, and only once. nullopt if this machine has no munge: libmunge is loaded at run time.
std::optional<std::string> munge_encode(const std::string& text);

/// Whether the credential is of this process's user, and for `text`.
bool munge_verify(const std::string& credential, const std::string& text);

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

  /// The bytes after a line. `looked` is called at least twice a second, with whether some came and for
  /// how long none did; without it, throws PeerSilent if none come for a while. Throws PeerError if the other side is lost.
  void receive_bytes(std::span<std::byte> into,
                     const std::function<void(bool came, std::chrono::milliseconds silent)>& looked = {});

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
