#include "staging/rendezvous/secure_connection.h"

#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "common/clock.h"
#include "common/sockets.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherId{0x13, 0x01};
constexpr std::string_view kExporterLabel = "EXPORTER-lockstep-staging";
constexpr std::size_t kRecordBytes = 16384;  // of TLS, at most

std::string openssl_reason() {
  const char* const text = ::ERR_reason_error_string(::ERR_peek_last_error());
  return text == nullptr ? "unknown error" : text;
}

}  // namespace

struct SecureConnection::Library {
  static SecureConnection& of(SSL* ssl) { return *static_cast<SecureConnection*>(SSL_get_app_data(ssl)); }

  // The pre-shared key of a client's name. OpenSSL frees the session.
  static SSL_SESSION* session_of(SSL* ssl, const std::string& key, const std::string& client) {
    std::array<unsigned char, 32> derived{};
    unsigned int length = 0;
    const auto* const text = reinterpret_cast<const unsigned char*>(client.data());
    SSL_SESSION* const session = ::SSL_SESSION_new();
    const bool good = session != nullptr &&
                      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), text, client.size(),
                             derived.data(), &length) != nullptr &&
                      ::SSL_SESSION_set1_master_key(session, derived.data(), derived.size()) == 1 &&
                      ::SSL_SESSION_set_cipher(session, ::SSL_CIPHER_find(ssl, kCipherId.data())) == 1 &&
                      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
    ::OPENSSL_cleanse(derived.data(), derived.size());
    if (good) return session;
    ::SSL_SESSION_free(session);
    return nullptr;
  }

  static int use_session(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** name, std::size_t* length,
                         SSL_SESSION** session) {
    const SecureConnection& self = of(ssl);
    *name = reinterpret_cast<const unsigned char*>(self.identity_.data());
    *length = self.identity_.size();
    *session = session_of(ssl, self.key_, self.identity_);
    return *session == nullptr ? 0 : 1;
  }

  static int find_session(SSL* ssl, const unsigned char* name, std::size_t length, SSL_SESSION** session) {
    SecureConnection& self = of(ssl);
    *session = nullptr;
    self.identity_.assign(reinterpret_cast<const char*>(name), length);
    if (!self.identity_.starts_with(self.service_ + " ")) return 1;  // not a client of this service
    *session = session_of(ssl, self.key_, self.identity_);
    return *session == nullptr ? 0 : 1;
  }

  static SSL_CTX* context() {
    static SSL_CTX* const shared = [] {
      ::signal(SIGPIPE, SIG_IGN);  // a write to a closed connection must fail, and must not end the process
      SSL_CTX* const made = ::SSL_CTX_new(::TLS_method());
      if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
          ::SSL_CTX_set_ciphersuites(made, kCipher) != 1 || ::SSL_CTX_set_num_tickets(made, 0) != 1)
        fail("cannot prepare TLS 1.3: {}", openssl_reason());
      ::SSL_CTX_set_psk_use_session_callback(made, use_session);
      ::SSL_CTX_set_psk_find_session_callback(made, find_session);
      // Messages tell where they end, so an end of the connection without TLS's own sign is only a lost peer.
      ::SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
      ::SSL_CTX_clear_options(made, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
      SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
      SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
      SSL_CTX_set_read_ahead(made, 1);
      return made;
    }();
    return shared;
  }
};

SecureConnection::SecureConnection(UniqueFd socket, std::string service, std::string key)
    : socket_(std::move(socket)),
      service_(std::move(service)),
      key_(std::move(key)),
      ssl_(::SSL_new(Library::context()), ::SSL_free) {
  set_nonblocking(socket_);
  if (!ssl_ || ::SSL_set_fd(ssl_.get(), socket_.get()) != 1)
    fail("cannot prepare a TLS connection: {}", openssl_reason());
  SSL_set_app_data(ssl_.get(), this);
}

SecureConnection::~SecureConnection() {
  forget_key();
}

void SecureConnection::forget_key() {
  ::OPENSSL_cleanse(key_.data(), key_.size());
  key_.clear();
}

// Returns false if the operation must wait for the socket.
template <typename Operation>
bool SecureConnection::attempt(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  ::ERR_clear_error();
  errno = 0;
  const int result = operation(ssl_.get());
  const int error = errno;
  if (result > 0) return true;
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      wanted_ = POLLIN;
      return false;
    case SSL_ERROR_WANT_WRITE:
      wanted_ = POLLOUT;
      return false;
    case SSL_ERROR_ZERO_RETURN:
      throw PeerLost("it closed the connection");
    case SSL_ERROR_SYSCALL:
      if (error == 0) throw PeerLost("it closed the connection");
      throw PeerLost("connection lost: " + errno_text(error));
    default:
      break;
  }
  const std::string reason = openssl_reason();
  if (!authenticated_) {  // SSL_is_init_finished() is false after each error
    throw PeerError(fmt::format(
        "TLS handshake failed ({}): both sides must have the key of the same step and the same release",
        reason));
  }
  throw PeerLost(fmt::format("what arrived is not what was sent ({})", reason));
}

bool SecureConnection::step(Handshake handshake) {
  if (!attempt(handshake)) return false;
  forget_key();
  if (::SSL_session_reused(ssl_.get()) != 1)
    throw PeerError("TLS handshake failed: it did not prove that it has the key");
  return authenticated_ = true;
}

void SecureConnection::complete(Handshake handshake, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!step(handshake)) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) throw PeerSilent("no answer");
    wait(wanted_, left);
  }
  handshake_bytes_ = bytes_moved();
}

std::uint64_t SecureConnection::bytes_moved() const {
  BIO* const bio = ::SSL_get_rbio(ssl_.get());
  return ::BIO_number_read(bio) + ::BIO_number_written(bio);
}

std::uint64_t SecureConnection::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_moved() - handshake_bytes_;
}

void SecureConnection::connect(const std::string& name, milliseconds timeout) {
  identity_ = service_ + " " + name;
  ::SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);  // no certificate is trusted
  complete(::SSL_connect, timeout);
}

void SecureConnection::accept(milliseconds timeout) {
  complete(::SSL_accept, timeout);
}

bool SecureConnection::try_accept() {
  return step(::SSL_accept);
}

std::string SecureConnection::exporter() const {
  std::array<unsigned char, 32> value{};
  if (::SSL_export_keying_material(ssl_.get(), value.data(), value.size(), kExporterLabel.data(),
                                   kExporterLabel.size(), nullptr, 0, 0) != 1)
    fail("cannot compute the exporter of a TLS connection: {}", openssl_reason());
  return fmt::format("{:02x}", fmt::join(value, ""));
}

std::size_t SecureConnection::send(std::span<const std::byte> bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const std::span<const std::byte> rest = bytes.subspan(sent);
    std::size_t count = 0;
    half_sent_ = !attempt([&](SSL* ssl) {
      if (!half_sent_ && sent_with_key_ >= key_bytes_ &&
          ::SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
        sent_with_key_ = 0;
        ++key_renewals_;
      }
      return ::SSL_write_ex(ssl, rest.data(), rest.size(), &count);
    });
    if (half_sent_) break;
    sent_with_key_ += count;
    sent += count;
  }
  return sent;
}

void SecureConnection::send_all(std::span<const std::byte> bytes, milliseconds timeout) {
  constexpr milliseconds kLook{1000};
  RunningTime time;
  milliseconds spent{0};
  for (;;) {
    bytes = bytes.subspan(send(bytes));
    if (bytes.empty()) return;
    spent += time.tick();
    if (spent > timeout) throw PeerLost("it stopped receiving");
    wait(POLLOUT, std::min(kLook, timeout));
  }
}

void SecureConnection::send_line(const std::string& line, milliseconds timeout) {
  const std::string ended = line + "\n";
  send_all(std::as_bytes(std::span(ended)), timeout);
}

std::size_t SecureConnection::decrypt(std::span<std::byte> into) {
  std::size_t count = 0;
  return attempt([&](SSL* ssl) { return ::SSL_read_ex(ssl, into.data(), into.size(), &count); }) ? count : 0;
}

std::size_t SecureConnection::receive(std::span<std::byte> into) {
  if (received_.empty()) return decrypt(into);
  const std::size_t count = std::min(into.size(), received_.size());
  std::memcpy(into.data(), received_.data(), count);
  received_.erase(0, count);
  searched_ = 0;
  return count;
}

std::optional<std::string> SecureConnection::take_line() {
  const std::size_t end = received_.find('\n', searched_);
  searched_ = end == std::string::npos ? received_.size() : 0;
  if (end == std::string::npos) return {};
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

std::optional<std::string> SecureConnection::receive_line(std::size_t max_bytes, milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    if (std::optional<std::string> line = take_line()) return line;
    if (received_.size() > max_bytes) throw PeerError("unexpected message");
    std::array<char, kRecordBytes> record;
    const std::size_t count = decrypt(std::as_writable_bytes(std::span(record)));
    received_.append(record.data(), count);
    if (count > 0) continue;
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return {};
    wait(POLLIN, left);
  }
}

bool SecureConnection::wait(int events, milliseconds timeout) const {
  pollfd ready{socket_.get(), static_cast<short>(events), 0};
  return ::poll(&ready, 1, static_cast<int>(timeout.count())) > 0;
}

}  // namespace lockstep::transfer
