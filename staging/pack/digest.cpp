#include "staging/pack/digest.h"

#include <fmt/format.h>
#ifdef LOCKSTEP_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the same functions, compiled for the processor's vectors: twice as fast
#else
#include <xxhash.h>
#endif

#include <cstring>
#include <new>

#include "common/leaf/text.h"

namespace lockstep::pack {
namespace {

Digest canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Digest digest;
  std::memcpy(digest.data(), bytes.digest, digest.size());
  return digest;
}

}  // namespace

std::string to_hex(const Digest& digest) {
  return lockstep::to_hex(std::as_bytes(std::span(digest)));
}

Digest digest_of(std::span<const std::byte> data) {
  return canonical(XXH3_128bits(data.data(), data.size()));
}

std::uint64_t xxh3_64(std::span<const std::byte> data) {
  return XXH3_64bits(data.data(), data.size());
}

void Hasher::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

Hasher::Hasher(Width width) : state_(XXH3_createState()), width_(width) {
  if (!state_) throw std::bad_alloc();
  reset();
}

Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::reset() {
  if (width_ == Width::bits64) {
    XXH3_64bits_reset(state_.get());
  } else {
    XXH3_128bits_reset(state_.get());
  }
}

void Hasher::update(std::span<const std::byte> data) {
  if (width_ == Width::bits64) {
    XXH3_64bits_update(state_.get(), data.data(), data.size());
  } else {
    XXH3_128bits_update(state_.get(), data.data(), data.size());
  }
}

Digest Hasher::digest() const {
  return canonical(XXH3_128bits_digest(state_.get()));
}

std::uint64_t Hasher::value() const {
  return XXH3_64bits_digest(state_.get());
}

}  // namespace lockstep::pack
