#include "runtime/train/checkpoint/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace lockstep::checkpoint {
namespace {

std::string hex_of(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

struct Digest::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->xxh3);
}

Digest::~Digest() = default;

void Digest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh3, bytes.data(), bytes.size());
}

std::string Digest::text() const {
  return hex_of(XXH3_128bits_digest(state_->xxh3));
}

std::string digest_of(std::span<const std::byte> bytes) {
  return hex_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

}  // namespace lockstep::checkpoint
