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
#include "staging/rendezvous/rendezvous_session.h"

namespace lockstep::transfer {

/// The other side is gone, silent or mad: what it was to give is to be had elsewhere.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// The connection broke, or was closed.
class PeerLost : public PeerError {
 public:
  using PeerError::PeerError;
};

struct PeerPatience {
  std::chrono::milliseconds silence{5000};  ///< a side that lets nothing through for so long is dead
  std::chrono::milliseconds chunk{30'000};  ///< one that takes longer on its way is not worth waiting for
};

class Link {
 public:
  /// Takes the socket, connected.
  Link(UniqueFd socket, Session::Role role, const std::string& key, const std::string& step,
       const PeerPatience& patience);

  /// Proves this side, and has the other prove itself; returns its node id. Throws PeerError.
  std::uint32_t shake_hands(std::uint32_t own_node_id);

  /// Throws PeerError where the other side is gone, or has not taken all of it in time.
  void send(const std::string& line, std::span<const std::byte> bytes = {});

  /// The next line; nothing where none comes in time. Throws PeerError where the other side is gone.
  std::optional<std::string> receive(std::chrono::milliseconds wait);

  /// What follows a line. Throws PeerError where it stops, or takes too long in all.
  void receive_bytes(std::span<std::byte> into);

 private:
  void send_all(std::span<const std::byte> bytes);
  bool fill(std::chrono::milliseconds wait);
  std::optional<std::string> raw_line(std::chrono::milliseconds wait);
  std::string credential_of(Session::Role role) const;

  UniqueFd socket_;
  Session::Role role_;
  std::string step_;
  PeerPatience patience_;
  Session session_;
  std::string received_;
};

/// A line's words.
std::vector<std::string> words_of(const std::string& line);
/// A number in a line. Throws PeerError where it is none.
std::uint64_t number_of(const std::string& word);

}  // namespace lockstep::transfer
