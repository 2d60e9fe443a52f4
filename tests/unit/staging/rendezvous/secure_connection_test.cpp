#include "staging/rendezvous/secure_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "common/sockets.h"
#include "tests/unit/message_of.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kStepKey = "the step's one-time key";
constexpr const char* kService = "exchange 7.0";
constexpr milliseconds kDeadline{60'000};
constexpr milliseconds kShort{100};

std::array<UniqueFd, 2> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_errno("socketpair");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string line_from(SecureConnection& to) {
  return to.receive_line(1000, kDeadline).value_or("nothing came");
}

/// What the socket has; "" at its end.
std::string raw_from(const UniqueFd& socket) {
  std::array<char, 65536> bytes{};
  const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

/// Two ends, connected over a network that the test controls once both have authenticated.
struct Network {
  std::array<UniqueFd, 2> near = socket_pair(), far = socket_pair();
  SecureConnection client{std::move(near[0]), kService, kStepKey};
  SecureConnection server{std::move(far[0]), kService, kStepKey};
  UniqueFd from_client = std::move(near[1]), to_server = std::move(far[1]);

  Network() {
    auto connecting = std::async(std::launch::async, [&] { client.connect("3", kDeadline); });
    bool accepted = false;
    while (!accepted || connecting.wait_for(milliseconds(0)) != std::future_status::ready) {
      pass(from_client, to_server);
      if (!accepted) accepted = server.try_accept();
      pass(to_server, from_client);
    }
    connecting.get();
  }
  static void pass(const UniqueFd& from, const UniqueFd& to) {
    pollfd ready{from.get(), POLLIN, 0};
    if (::poll(&ready, 1, 1) == 1) lockstep::send_all(to, raw_from(from), "the other end");
  }
  /// What the client sends on the network for a line.
  std::string record(const std::string& line) {
    client.send_line(line);
    return raw_from(from_client);
  }
  std::string receive(const std::string& record) {
    lockstep::send_all(to_server, record, "the server");
    return line_from(server);
  }
};

/// Two ends with the same key.
struct Connected {
  std::array<UniqueFd, 2> ends = socket_pair();
  SecureConnection client{std::move(ends[0]), kService, kStepKey};
  SecureConnection server{std::move(ends[1]), kService, kStepKey};
  Connected() {
    auto accepting = std::async(std::launch::async, [&] { server.accept(kDeadline); });
    client.connect("3", kDeadline);
    accepting.get();
  }
};

TEST(SecureConnection, CarriesLinesAndBytesBothWaysAndNamesTheClient) {
  Connected two;
  EXPECT_EQ(two.server.client(), "3");
  two.client.send_line("one");
  two.client.send_line("");
  EXPECT_EQ(line_from(two.server), "one");
  EXPECT_EQ(line_from(two.server), "");
  const std::string bytes = "two\nand bytes";
  two.server.send_all(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(line_from(two.client), "two");
  std::string rest(9, ' ');
  EXPECT_EQ(two.client.receive(std::as_writable_bytes(std::span(rest))), 9U);
  EXPECT_EQ(rest, "and bytes");
  EXPECT_EQ(two.client.receive(std::as_writable_bytes(std::span(rest))), 0U) << "it must not wait";
}

TEST(SecureConnection, OneThreadSendsWhileAnotherReceives) {
  Connected two;
  const std::vector<std::byte> data(std::size_t{16} << 20U, std::byte{5});
  const auto sends = [&](SecureConnection& connection) { connection.send_all(data); };
  const auto receives = [&](SecureConnection& connection) {
    std::vector<std::byte> got(data.size());
    for (std::span<std::byte> left(got); !left.empty();) {
      const std::size_t count = connection.receive(left);
      left = left.subspan(count);
      if (count == 0 && !connection.wait(POLLIN, kDeadline)) break;
    }
    EXPECT_EQ(got, data);
  };
  std::vector<std::jthread> threads;
  for (SecureConnection* const end : {&two.client, &two.server}) {
    threads.emplace_back(sends, std::ref(*end));
    threads.emplace_back(receives, std::ref(*end));
  }
}

TEST(SecureConnection, RenewsItsKeysAfterSoManyBytes) {
  Connected two;
  two.client.renew_keys_after(100'000);
  std::string bytes(1'000'000, ' ');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 % 251);
  auto sending = std::async(std::launch::async,
                            [&] { two.client.send_all(std::as_bytes(std::span(bytes)), kDeadline); });
  std::string got(bytes.size(), ' ');
  for (std::span<char> rest = got; !rest.empty();) {
    const std::size_t count = two.server.receive(std::as_writable_bytes(rest));
    rest = rest.subspan(count);
    if (count == 0) {
      ASSERT_TRUE(two.server.wait(POLLIN, kDeadline));
    }
  }
  sending.get();
  EXPECT_EQ(got, bytes);
  EXPECT_GE(two.client.key_renewals(), 5);
}

TEST(SecureConnection, OnlyTheTwoEndsKnowTheExporter) {
  Connected two;
  EXPECT_EQ(two.client.exporter().size(), 64U);
  EXPECT_EQ(two.client.exporter(), two.server.exporter());
  EXPECT_NE(two.client.exporter(), Connected().client.exporter());
}

TEST(SecureConnection, AnotherKeyServiceOrStepIsRefusedByBothEnds) {
  using Names = std::array<std::string, 3>;
  for (const auto& [key, service, name] :
       {Names{"guessed", kService, "3"}, Names{"", kService, "3"}, Names{kStepKey, "exchange 8.0", "3"},
        Names{kStepKey, "rendezvous", "7.0 3"}, Names{kStepKey, "exchange 7.01", "3"}}) {
    SCOPED_TRACE(service + " " + name);
    auto ends = socket_pair();
    SecureConnection server(std::move(ends[0]), kService, kStepKey);
    SecureConnection client(std::move(ends[1]), service, key);
    auto refusal =
        std::async(std::launch::async, [&] { return message_of([&] { server.accept(kDeadline); }); });
    const std::string error = message_of([&] { client.connect(name, kDeadline); });
    EXPECT_THAT(error, HasSubstr("key of the same step"));
    EXPECT_THAT(refusal.get(), HasSubstr("key of the same step"));
  }
}

using Ssl = std::unique_ptr<SSL, void (*)(SSL*)>;

/// A TLS end that is not Lockstep's, on a blocking socket.
Ssl other_tls(const UniqueFd& socket, const std::function<void(SSL_CTX*)>& configure) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(::SSL_CTX_new(::TLS_method()), ::SSL_CTX_free);
  configure(context.get());
  Ssl ssl(::SSL_new(context.get()), ::SSL_free);
  ::SSL_set_fd(ssl.get(), socket.get());
  return ssl;
}

TEST(SecureConnection, ClientsWithoutTheKeyAreRefusedWhateverTheyOffer) {
  const std::vector<std::function<void(SSL_CTX*)>> offers{
      [](SSL_CTX*) {}, [](SSL_CTX* context) { SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION); },
      [](SSL_CTX* context) { ::SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384"); }};
  for (const auto& offer : offers) {
    auto ends = socket_pair();
    SecureConnection server(std::move(ends[0]), kService, kStepKey);
    auto refusal =
        std::async(std::launch::async, [&] { return message_of([&] { server.accept(kDeadline); }); });
    const Ssl client = other_tls(ends[1], offer);
    EXPECT_NE(::SSL_connect(client.get()), 1);
    EXPECT_THAT(refusal.get(), HasSubstr("TLS handshake failed"));
  }
}

// Otherwise anyone could play the server.
TEST(SecureConnection, AServerWithACertificateInsteadOfTheKeyIsRefused) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(::EVP_RSA_gen(2048), ::EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(::X509_new(), ::X509_free);
  ::X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  ::X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  ::X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(::X509_sign(certificate.get(), key.get(), ::EVP_sha256()), 0);
  auto ends = socket_pair();
  std::thread server([&] {
    const Ssl other = other_tls(ends[0], [&](SSL_CTX* context) {
      ::SSL_CTX_use_certificate(context, certificate.get());
      ::SSL_CTX_use_PrivateKey(context, key.get());
    });
    EXPECT_NE(::SSL_accept(other.get()), 1);
  });
  SecureConnection client(std::move(ends[1]), kService, kStepKey);
  EXPECT_THAT(message_of([&] { client.connect("3", kDeadline); }), HasSubstr("certificate verify failed"));
  server.join();
}

TEST(SecureConnection, AHandshakeThatStopsOrTricklesEndsAtTheDeadline) {
  for (const std::string& start :
       {std::string(), std::string("\x16\x03\x01\x01"), std::string("\x16\x03\x01\x01\x00\x01", 6)}) {
    auto ends = socket_pair();
    SecureConnection server(std::move(ends[0]), kService, kStepKey);
    lockstep::send_all(ends[1], start, "the server");
    EXPECT_THROW(server.accept(kShort), PeerSilent);
  }
  auto ends = socket_pair();
  SecureConnection server(std::move(ends[0]), kService, kStepKey);
  std::atomic<bool> ended = false;
  std::thread trickle([&] {
    lockstep::send_all(ends[1], std::string("\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb", 9), "the server");
    while (!ended && ::send(ends[1].get(), "x", 1, MSG_NOSIGNAL) == 1)
      std::this_thread::sleep_for(milliseconds(1));
  });
  EXPECT_THROW(server.accept(kShort), PeerSilent);
  ended = true;
  trickle.join();
  SecureConnection client(std::move(ends[1]), kService, kStepKey);
  EXPECT_THROW(client.connect("3", kShort), PeerError);
}

TEST(SecureConnection, WhatIsSentCannotBeReadOnTheNetwork) {
  Network network;
  const std::string record = network.record("a secret line");
  EXPECT_THAT(record, Not(HasSubstr("secret")));
  EXPECT_EQ(network.receive(record), "a secret line");
}

TEST(SecureConnection, ReplayedReorderedAndMissingRecordsAreErrors) {
  {
    Network network;
    const std::string record = network.record("one");
    EXPECT_EQ(network.receive(record), "one");
    EXPECT_THROW(network.receive(record), PeerLost) << "replayed";
  }
  {
    Network network;
    const std::string first = network.record("one");
    EXPECT_THROW(network.receive(network.record("two")), PeerLost) << "the first is missing";
    EXPECT_THROW(network.receive(first), PeerError) << "the connection is unusable after an error";
  }
  {
    Network network;
    const std::string record = network.record("one");
    lockstep::send_all(network.from_client, record, "the client");
    EXPECT_THROW(line_from(network.client), PeerLost) << "sent back";
  }
  Network network;
  const std::string record = network.record("one");
  lockstep::send_all(network.to_server, record.substr(0, record.size() - 1), "the server");
  network.to_server.reset();
  EXPECT_THROW(line_from(network.server), PeerLost) << "truncated";
}

TEST(SecureConnection, AClosedConnectionIsLost) {
  Connected two;
  two.client.send_line("last words");
  ::shutdown(two.client.socket().get(), SHUT_WR);
  EXPECT_EQ(line_from(two.server), "last words");
  EXPECT_THROW(line_from(two.server), PeerLost);
  EXPECT_THROW(two.client.send_line("more"), PeerLost) << "and no SIGPIPE";
}

TEST(SecureConnection, SendingEndsAtTheTimeoutIfNobodyReceives) {
  Connected two;
  const std::vector<std::byte> data(std::size_t{64} << 20U);
  EXPECT_THROW(two.client.send_all(data, kShort), PeerLost);
}

TEST(SecureConnection, ALineThatDoesNotEndIsRefused) {
  Connected two;
  const std::string text(2000, 'x');
  two.client.send_all(std::as_bytes(std::span(text)));
  EXPECT_THROW(line_from(two.server), PeerError);
}

SSL_SESSION* session_for(SSL* ssl, const char* identity) {
  std::array<unsigned char, 32> key{};
  unsigned int length = 0;
  ::HMAC(::EVP_sha256(), kStepKey, static_cast<int>(std::strlen(kStepKey)),
         reinterpret_cast<const unsigned char*>(identity), std::strlen(identity), key.data(), &length);
  SSL_SESSION* const session = ::SSL_SESSION_new();
  const std::array<unsigned char, 2> cipher{0x13, 0x01};
  ::SSL_SESSION_set1_master_key(session, key.data(), key.size());
  ::SSL_SESSION_set_cipher(session, ::SSL_CIPHER_find(ssl, cipher.data()));
  ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
  return session;
}

int use_key(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** name, std::size_t* length,
            SSL_SESSION** session) {
  constexpr const char* kName = "exchange 7.0 3";
  *name = reinterpret_cast<const unsigned char*>(kName);
  *length = std::strlen(kName);
  *session = session_for(ssl, kName);
  return 1;
}

// Another program that follows RFC 8446, with the key: it may change keys, and it gets neither tickets nor early data.
TEST(SecureConnection, FollowsTheStandard) {
  auto ends = socket_pair();
  SecureConnection server(std::move(ends[0]), kService, kStepKey);
  auto accepting = std::async(std::launch::async, [&] { server.accept(kDeadline); });
  const Ssl client =
      other_tls(ends[1], [](SSL_CTX* context) { ::SSL_CTX_set_psk_use_session_callback(context, use_key); });
  ASSERT_EQ(::SSL_connect(client.get()), 1);
  accepting.get();
  EXPECT_STREQ(::SSL_get_cipher(client.get()), "TLS_AES_128_GCM_SHA256");
  EXPECT_NE(SSL_get_negotiated_group(client.get()), 0) << "no Diffie-Hellman exchange";
  EXPECT_EQ(::SSL_renegotiate(client.get()), 0) << "TLS 1.3 has no renegotiation";
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(::SSL_key_update(client.get(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(::SSL_write(client.get(), "hello\n", 6), 6);
    EXPECT_EQ(line_from(server), "hello");
    server.send_line("answer");
    std::array<char, 100> answer{};
    EXPECT_EQ(::SSL_read(client.get(), answer.data(), answer.size()), 7);
  }
  EXPECT_EQ(::SSL_SESSION_is_resumable(::SSL_get0_session(client.get())), 0) << "got a ticket";
  ::SSL_shutdown(client.get());
  EXPECT_THROW(line_from(server), PeerLost) << "the other side says that it closes";
}

}  // namespace
}  // namespace lockstep::transfer
