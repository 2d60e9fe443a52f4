// The protocol between srun's rendezvous and a node, or between two nodes, without the socket: lines of text, each with
// a proof that the sender has the step's one-time key. The key itself is never sent.
//
// Both sides greet with a nonce. After that a line is "MAC PAYLOAD". The MAC (HMAC-SHA256) covers the purpose, the
// sender's role, both nonces, the line's number and the payload. So a line can neither be forged, nor replayed in this
// or another conversation, nor sent back to its sender. Bytes that follow a line have a separate tag, AES-128-GMAC
// under a key made from the same parts, which is faster than an HMAC of all data.
//
// Threads: a Session belongs to one thread at a time; two threads may use its two directions (seal, open).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::transfer {

class Session {
 public:
  enum class Role { server, node };
  using Tag = std::array<std::byte, 16>;

  /// `key` is the step's: any text. `purpose` is a word that both sides share: a message for one purpose is
  /// invalid for another. Takes a fresh nonce from the kernel.
  Session(Role role, std::string key, std::string purpose = "rendezvous");

  /// The first line to send, with its line end.
  std::string greeting() const;

  /// Takes the other side's first line, without line end. Throws Error if it is not a greeting.
  void take_greeting(std::string_view line);
  bool greeted() const { return !other_nonce_.empty(); }

  /// Names this conversation: both nonces, the server's first.
  std::string id() const;

  /// The next line to send, with its line end. The payload must not contain a line end.
  std::string seal(std::string_view payload);

  /// The payload of the next received line (without line end). Throws Error if the proof is missing or wrong.
  std::string open(std::string_view line);

  /// The tag of bytes that follow the last sealed line.
  Tag seal_bytes(std::span<const std::byte> bytes) const;

  /// Checks bytes that followed the last opened line. Throws Error if the tag does not match.
  void open_bytes(std::span<const std::byte> bytes, const Tag& expected) const;

 private:
  using Mac = std::array<unsigned char, 32>;

  Role other_role() const { return role_ == Role::server ? Role::node : Role::server; }
  Mac mac(Role sender, std::string_view covered) const;
  std::string proof(Role sender, std::uint64_t number, std::string_view payload) const;
  Tag tag(Role sender, std::uint64_t number, std::span<const std::byte> bytes) const;

  Role role_;
  std::string key_;
  std::string purpose_;
  std::string nonce_;
  std::string other_nonce_;
  std::uint64_t sealed_ = 0;
  std::uint64_t opened_ = 0;
};

/// The longest line that a node may send; the connection of a peer that sends more is closed. One node tells what all
/// sources are: about 130 bytes for each.
inline constexpr std::size_t kMaxLineBytes = std::size_t{8} << 20U;
/// The longest line from srun: it carries what all nodes said.
inline constexpr std::size_t kMaxServerLineBytes = std::size_t{64} << 20U;

}  // namespace lockstep::transfer
