// One connection of the exchange: authenticated lines, some of them followed by bytes (exchange.h lists
// them).
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

/// The other node refuses this one, or breaks the protocol: its chunks must come from elsewhere.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// The connection could not be made, broke, was closed, or the peer stopped sending. It may be made again.
class PeerLost : public PeerError {
 public:
  using PeerError::PeerError;
};

struct PeerTimeouts {
  std::chrono::milliseconds silence{5000};  ///< after it, the rendezvous is asked whether the node is lost
  std::chrono::milliseconds chunk{30'000};  ///< for one chunk to be sent or received
};

/// The connection is there, but nothing comes.
class PeerSilent : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/// Measures time in which this process runs. A long gap between two calls means that it was stopped, as in a suspended
/// job: at most one second of it counts.
class RunningTime {
 public:
  /// The time since the last call.
  std::chrono::milliseconds tick();

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

class PeerLink {
 public:
  /// Takes a connected socket.
  PeerLink(UniqueFd socket, Session::Role role, const std::string& key, const std::string& step,
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
  void receive_raw(std::span<std::byte> into);
  void send_all(std::span<const std::byte> bytes);
  bool fill(std::chrono::milliseconds wait);
  std::optional<std::string> raw_line(std::chrono::milliseconds wait);
  std::string credential_of(Session::Role role) const;

  UniqueFd socket_;
  Session::Role role_;
  std::string step_;
  PeerTimeouts timeouts_;
  Session session_;
  std::string received_;
};

std::vector<std::string> words_of(const std::string& line);
/// Throws PeerError if the word is not a number.
std::uint64_t parse_number(const std::string& word);

}  // namespace lockstep::transfer
