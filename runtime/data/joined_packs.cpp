#include "runtime/data/joined_packs.h"

#include <algorithm>

#include "common/error.h"

namespace lockstep::data {

JoinedPacks::JoinedPacks(std::vector<NamedPack> packs) : packs_(std::move(packs)) {
  if (packs_.empty()) fail_usage("there are no packs to join");
  begins_.push_back(0);
  for (const NamedPack& pack : packs_) {
    if (pack.reader->token_type() != token_type()) {
      fail_usage("'{}' holds {} where '{}' holds {}: pack both alike", pack.name,
                 pack::name_of(pack.reader->token_type()), packs_.front().name, pack::name_of(token_type()));
    }
    begins_.push_back(begins_.back() + pack.reader->size());
  }
}

std::vector<MixturePart> JoinedPacks::parts_of_mixture() const {
  std::vector<MixturePart> parts;
  for (const NamedPack& pack : packs_) parts.push_back({pack.name, pack.reader->size()});
  return parts;
}

std::pair<const pack::Reader*, std::size_t> JoinedPacks::find(std::size_t i) const {
  if (i >= size()) fail("there is no sample {}: the packs have {}", i, size());
  std::size_t pack = 0;
  if (packs_.size() <= 8) {
    while (i >= begins_[pack + 1]) ++pack;
  } else {
    pack =
        static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), i) - begins_.begin()) - 1;
  }
  return {packs_[pack].reader, i - begins_[pack]};
}

std::uint64_t JoinedPacks::bytes(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->bytes(number);
}

std::uint64_t JoinedPacks::tokens(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->tokens(number);
}

std::string_view JoinedPacks::key(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->key(number);
}

void JoinedPacks::read(std::size_t i, std::span<std::byte> into) const {
  const auto [reader, number] = find(i);
  reader->read(number, into);
}

std::span<const std::byte> JoinedPacks::view(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->view(number);
}

std::span<const std::byte> JoinedPacks::unchecked_view(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->unchecked_view(number);
}

bool JoinedPacks::can_view() const {
  return std::all_of(packs_.begin(), packs_.end(),
                     [](const NamedPack& pack) { return pack.reader->can_view(); });
}

std::vector<pack::Part> JoinedPacks::parts(std::size_t i) const {
  const auto [reader, number] = find(i);
  return reader->parts(number);
}

void JoinedPacks::read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const {
  const auto [reader, number] = find(i);
  reader->read_part(number, p, into);
}

std::string JoinedPacks::fingerprint() const {
  std::string all;
  for (const NamedPack& pack : packs_) {
    if (!all.empty()) all += '+';
    all += pack.reader->fingerprint();
  }
  return all;
}

void JoinedPacks::verify() const {
  for (const NamedPack& pack : packs_) pack.reader->verify();
}

}  // namespace lockstep::data
