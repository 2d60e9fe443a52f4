// A connection between two processes of a step: TLS 1.3 with a key that both have, from OpenSSL. Nobody else can connect,
// read what is sent, or change it.
//
// The only mode is psk_dhe_ke (RFC 8446): the key proves who may join, and a fresh Diffie-Hellman exchange makes the keys
// of the connection, so whoever learns the step's key later cannot read what was recorded. The cipher is
// TLS_AES_128_GCM_SHA256. There are no certificates, tickets or early data. The client names itself and the service that
// it wants; the pre-shared key is derived from the step's key and that name, so a proof made for one service or step is
// worth nothing for another.
//
// Threads: one thread may send while another one receives, after the handshake.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "common/error.h"
#include "common/files.h"

struct ssl_st;  // of OpenSSL

namespace lockstep::transfer {

/// The other side refuses this one, or breaks the protocol.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// The connection could not be made, broke, was closed, or the peer stopped sending. It may be made again.
class PeerLost : public PeerError {
 public:
  using PeerError::PeerError;
};

/// The connection is there, but nothing comes.
class PeerSilent : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

class SecureConnection {
 public:
  /// Takes a connected socket. `service` says what the server is; `key` is the step's. Both are any text.
  SecureConnection(UniqueFd socket, std::string service, std::string key);
  ~SecureConnection();
  SecureConnection(const SecureConnection&) = delete;
  SecureConnection& operator=(const SecureConnection&) = delete;

  /// The handshake. Both throw PeerSilent if it takes longer than the timeout, PeerLost if the connection breaks, and
  /// PeerError if the other side has another key or asks for another service.
  void connect(const std::string& name, std::chrono::milliseconds timeout);
  void accept(std::chrono::milliseconds timeout);
  /// Continues a server's handshake without waiting. Returns whether it is complete. Throws as accept().
  bool try_accept();

  /// The name that the client gave.
  std::string client() const { return identity_.substr(service_.size() + 1); }
  /// A value that only the two ends of this connection know, as hexadecimal digits (a TLS exporter, RFC 8446, 7.5). A
  /// process between the two would have two connections with different values.
  std::string exporter() const;

  /// Sends what the socket takes at once; returns how much that was. The bytes left over must be sent next. Throws
  /// PeerError.
  std::size_t send(std::span<const std::byte> bytes);
  /// Sends all, and waits up to `timeout` of running time. Throws PeerLost if it takes longer.
  void send_all(std::span<const std::byte> bytes, std::chrono::milliseconds timeout = kNoLimit);
  void send_line(const std::string& line, std::chrono::milliseconds timeout = kNoLimit);

  /// Receives what has arrived, without waiting; returns how much that was, or 0. Throws PeerError.
  std::size_t receive(std::span<std::byte> into);
  /// The next line, without its end; nullopt if it does not arrive in time. Throws PeerError if it is longer than
  /// `max_bytes`.
  std::optional<std::string> receive_line(std::size_t max_bytes, std::chrono::milliseconds timeout = {});

  /// Waits until the socket can be read (POLLIN) or written (POLLOUT). Returns false if it cannot. Call it only after
  /// receive() or send() had nothing left to do.
  bool wait(int events, std::chrono::milliseconds timeout) const;

  /// New keys are used after so many bytes were sent. AES-GCM's limit is far above (RFC 8446, 5.5).
  void renew_keys_after(std::uint64_t bytes) { key_bytes_ = bytes; }
  /// How often this end has renewed its keys.
  int key_renewals() const { return key_renewals_; }

  const UniqueFd& socket() const { return socket_; }
  /// Bytes sent and received on the network after the handshake.
  std::uint64_t bytes() const;

  static constexpr std::chrono::milliseconds kNoLimit = std::chrono::milliseconds::max();

 private:
  struct Library;  // what OpenSSL calls

  using Handshake = int (*)(ssl_st*);
  bool step(Handshake handshake);
  void complete(Handshake handshake, std::chrono::milliseconds timeout);
  std::size_t decrypt(std::span<std::byte> into);
  std::optional<std::string> take_line();
  void forget_key();
  std::uint64_t bytes_moved() const;
  template <typename Operation>
  bool attempt(const Operation& operation);

  UniqueFd socket_;
  std::string service_;
  std::string key_;           // "" once the handshake is complete
  std::string identity_;      // of the client: its service and its name
  mutable std::mutex mutex_;  // guards ssl_
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  bool authenticated_ = false;
  int wanted_ = 0;  // what the handshake waits for
  std::uint64_t handshake_bytes_ = 0;
  std::uint64_t key_bytes_ = std::uint64_t{256} << 30U;
  std::uint64_t sent_with_key_ = 0;
  int key_renewals_ = 0;
  bool half_sent_ = false;  // the last record: OpenSSL must send the rest of it first
  std::string received_;    // beyond the last line
  std::size_t searched_ = 0;
};

}  // namespace lockstep::transfer
