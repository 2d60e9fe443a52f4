// One connection of the exchange: lines with proof, and bytes behind them (exchange.h says which).
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

#include "common/error.h"
#include "common/files.h"
#include "staging/transfer/rendezvous_session.h"

namespace lockstep::transfer {

/// The other side is gone, silent or mad: what it was to give is to be had elsewhere.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// A side that lets nothing through for so long is dead.
inline constexpr std::chrono::milliseconds kPeerPatience{5000};

class Link {
 public:
  /// Takes the socket, connected.
  Link(UniqueFd socket, Session::Role role, const std::string& key, const std::string& step);

  /// Proves this side, and has the other prove itself; returns its node id. Throws PeerError.
  std::uint32_t shake_hands(std::uint32_t own_node_id);

  /// Throws PeerError where the other side is gone, or takes nothing for kPeerPatience.
  void send(const std::string& line, std::span<const std::byte> bytes = {});

  /// The next line; nothing where none comes in time. Throws PeerError where the other side is gone.
  std::optional<std::string> receive(std::chrono::milliseconds wait);

  /// What follows a line. Throws PeerError where it stops for kPeerPatience.
  void receive_bytes(std::span<std::byte> into);

 private:
  void send_all(std::span<const std::byte> bytes);
  bool fill(std::chrono::milliseconds wait);
  std::optional<std::string> raw_line(std::chrono::milliseconds wait);
  std::string credential_of(Session::Role role) const;

  UniqueFd socket_;
  Session::Role role_;
  std::string step_;
  Session session_;
  std::string received_;
};

/// A line's words.
std::vector<std::string> words_of(const std::string& line);
/// A number in a line. Throws PeerError where it is none.
std::uint64_t number_of(const std::string& word);

}  // namespace lockstep::transfer
