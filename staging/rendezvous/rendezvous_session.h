// What srun's rendezvous and a node say to each other, apart from any socket: lines of text, each carrying
// proof that the sender has the step's one-time key. The key itself never travels here.
//
// Both sides greet with a nonce; from then on a line is "MAC PAYLOAD", where the MAC (HMAC-SHA256) covers the
// purpose, the sender's role, both nonces, the line's number and the payload: a line can neither be forged
// nor replayed, in this or in another conversation, nor sent back to who wrote it.
//
// Threads: a Session belongs to one thread at a time; two threads may use its two directions (seal, open).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::transfer {

class Session {
 public:
  enum class Role { server, node };

  /// `key` is the step's, any text. `purpose`, a word, is the same on both sides: what is said for one
  /// purpose means nothing for another. Takes a fresh nonce from the kernel.
  Session(Role role, std::string key, std::string purpose = "rendezvous");

  /// The first line to send, with its line end.
  std::string greeting() const;

  /// Takes the other side's first line (without line end). Throws Error where it is none.
  void take_greeting(std::string_view line);
  bool greeted() const { return !other_nonce_.empty(); }

  /// Names this conversation: both nonces, the server's first.
  std::string id() const;

  /// The next line to send, with its line end. The payload holds no line end.
  std::string seal(std::string_view payload);

  /// The payload of the next line received (without line end). Throws Error where the proof is missing.
  std::string open(std::string_view line);

 private:
  std::string proof(Role sender, std::uint64_t number, std::string_view payload) const;

  Role role_;
  std::string key_;
  std::string purpose_;
  std::string nonce_;
  std::string other_nonce_;
  std::uint64_t sealed_ = 0;
  std::uint64_t opened_ = 0;
};

/// No line that a node sends is longer; a peer that sends more is cut off.
inline constexpr std::size_t kLongestLine = 65536;
/// Lines from srun carry what all nodes said.
inline constexpr std::size_t kLongestServerLine = std::size_t{64} << 20U;

}  // namespace lockstep::transfer
