#include "staging/rendezvous/rendezvous_session.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kNonceBytes = 16;
constexpr std::size_t kMacBytes = 32;

std::string to_hex(const unsigned char* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

std::string new_nonce() {
  std::array<unsigned char, kNonceBytes> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail_errno("cannot read random numbers");
  }
  return to_hex(bytes.data(), bytes.size());
}

}  // namespace

Session::Session(Role role, std::string key, std::string purpose)
    : role_(role), key_(std::move(key)), purpose_(std::move(purpose)), nonce_(new_nonce()) {
}

std::string Session::id() const {
  return role_ == Role::server ? nonce_ + other_nonce_ : other_nonce_ + nonce_;
}

std::string Session::greeting() const {
  return fmt::format("lockstep-{} 1 {}\n", purpose_, nonce_);
}

void Session::take_greeting(std::string_view line) {
  const std::string greeting = fmt::format("lockstep-{} 1 ", purpose_);
  const bool good = line.starts_with(greeting) && line.size() == greeting.size() + 2 * kNonceBytes &&
                    line.find_first_not_of("0123456789abcdef", greeting.size()) == std::string_view::npos;
  if (!good) fail("the other side speaks another protocol");
  other_nonce_ = line.substr(greeting.size());
}

std::string Session::proof(Role sender, std::uint64_t number, std::string_view payload) const {
  const bool own = sender == role_;
  const std::string covered =
      fmt::format("{}|{}|{}|{}|{}|{}", purpose_, sender == Role::server ? "server" : "node",
                  own ? nonce_ : other_nonce_, own ? other_nonce_ : nonce_, number, payload);
  std::array<unsigned char, kMacBytes> mac{};
  unsigned int length = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(covered.data());
  if (::HMAC(::EVP_sha256(), key_.data(), static_cast<int>(key_.size()), data, covered.size(), mac.data(),
             &length) == nullptr ||
      length != mac.size()) {
    fail("cannot compute a message's proof");
  }
  return to_hex(mac.data(), mac.size());
}

std::string Session::seal(std::string_view payload) {
  return fmt::format("{} {}\n", proof(role_, sealed_++, payload), payload);
}

std::string Session::open(std::string_view line) {
  constexpr std::size_t kProof = 2 * kMacBytes;
  if (!greeted() || line.size() <= kProof || line[kProof] != ' ') fail("a message without proof");
  const std::string_view payload = line.substr(kProof + 1);
  const Role sender = role_ == Role::server ? Role::node : Role::server;
  const std::string expected = proof(sender, opened_, payload);
  if (::CRYPTO_memcmp(expected.data(), line.data(), kProof) != 0) fail("a message with a wrong proof");
  ++opened_;
  return std::string(payload);
}

}  // namespace lockstep::transfer
