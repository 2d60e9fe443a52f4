#include "staging/rendezvous/rendezvous_session.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstring>
#include <memory>
#include <tuple>

#include "common/error.h"
#include "common/leaf/random.h"
#include "common/leaf/text.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kNonceBytes = 16;

}  // namespace

Session::Session(Role role, std::string key, std::string purpose)
    : role_(role), key_(std::move(key)), purpose_(std::move(purpose)), nonce_(random_hex(kNonceBytes)) {
}

std::string Session::id() const {
  return role_ == Role::server ? nonce_ + other_nonce_ : other_nonce_ + nonce_;
}

std::string Session::greeting() const {
  return fmt::format("lockstep-{} 2 {}\n", purpose_, nonce_);
}

void Session::take_greeting(std::string_view line) {
  const std::string greeting = fmt::format("lockstep-{} 2 ", purpose_);
  const bool good = line.starts_with(greeting) && line.size() == greeting.size() + 2 * kNonceBytes &&
                    line.find_first_not_of("0123456789abcdef", greeting.size()) == std::string_view::npos;
  if (!good) fail("the other side uses another protocol");
  other_nonce_ = line.substr(greeting.size());
}

Session::Mac Session::mac(Role sender, std::string_view covered) const {
  const bool own = sender == role_;
  const std::string text = fmt::format("{}|{}|{}|{}|{}", purpose_, sender == Role::server ? "server" : "node",
                                       own ? nonce_ : other_nonce_, own ? other_nonce_ : nonce_, covered);
  Mac mac{};
  unsigned int length = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(text.data());
  if (::HMAC(::EVP_sha256(), key_.data(), static_cast<int>(key_.size()), data, text.size(), mac.data(),
             &length) == nullptr ||
      length != mac.size()) {
    fail("cannot compute the proof of a message");
  }
  return mac;
}

std::string Session::proof(Role sender, std::uint64_t number, std::string_view payload) const {
  const Mac bytes = mac(sender, fmt::format("{}|{}", number, payload));
  return to_hex(std::as_bytes(std::span(bytes)));
}

std::string Session::seal(std::string_view payload) {
  return fmt::format("{} {}\n", proof(role_, sealed_++, payload), payload);
}

std::string Session::open(std::string_view line) {
  constexpr std::size_t kProof = 2 * std::tuple_size_v<Mac>;
  if (!greeted() || line.size() <= kProof || line[kProof] != ' ') fail("a message without proof");
  const std::string_view payload = line.substr(kProof + 1);
  const std::string expected = proof(other_role(), opened_, payload);
  if (::CRYPTO_memcmp(expected.data(), line.data(), kProof) != 0) fail("the proof of a message is wrong");
  ++opened_;
  return std::string(payload);
}

// GMAC is GCM that encrypts nothing: all bytes are additional data. The number of the line before the bytes
// is the nonce, so no nonce is used twice with one key.
Session::Tag Session::tag(Role sender, std::uint64_t number, std::span<const std::byte> bytes) const {
  const Mac key = mac(sender, "bytes");
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  const std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)> context(::EVP_CIPHER_CTX_new(),
                                                                           ::EVP_CIPHER_CTX_free);
  Tag tag{};
  int length = 0;
  std::array<unsigned char, 16> none{};
  if (!context ||
      ::EVP_EncryptInit_ex(context.get(), ::EVP_aes_128_gcm(), nullptr, key.data(), nonce.data()) != 1 ||
      ::EVP_EncryptUpdate(context.get(), nullptr, &length, data, static_cast<int>(bytes.size())) != 1 ||
      ::EVP_EncryptFinal_ex(context.get(), none.data(), &length) != 1 ||
      ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()), tag.data()) !=
          1) {
    fail("cannot compute the tag of {} bytes", bytes.size());
  }
  return tag;
}

Session::Tag Session::seal_bytes(std::span<const std::byte> bytes) const {
  return tag(role_, sealed_, bytes);
}

void Session::open_bytes(std::span<const std::byte> bytes, const Tag& expected) const {
  const Tag computed = tag(other_role(), opened_, bytes);
  if (::CRYPTO_memcmp(computed.data(), expected.data(), computed.size()) != 0)
    fail("the tag of received bytes is wrong: the other side did not send them");
}

}  // namespace lockstep::transfer
