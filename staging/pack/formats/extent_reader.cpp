#include "staging/pack/formats/extent_reader.h"

#include <algorithm>

#include "common/error.h"
#include "staging/pack/digest.h"

namespace lockstep::pack {
namespace {

constexpr std::size_t kHashedSamples = 64;
constexpr std::size_t kHashedBytes = std::size_t{1} << 20;  // of a sample

}  // namespace

ExtentReader::ExtentReader(const std::filesystem::path& folder, std::string name, std::size_t samples,
                           TokenType type)
    : file_(folder / name), name_(std::move(name)), samples_(samples), type_(type), keys_(samples) {
  if (samples == 0) throw NoSamples(fmt::format("{} holds no samples", file_.path().string()));
}

std::size_t ExtentReader::number(std::size_t i) const {
  if (i >= samples_) fail("{}: there is no sample {}, only {} samples", file_.path().string(), i, samples_);
  return i;
}

void ExtentReader::check_buffer(std::size_t i, std::uint64_t offset, std::size_t bytes,
                                std::uint64_t expected) const {
  if (bytes != expected)
    fail("{}: the buffer has {} bytes, the sample has {}", file_.where(offset, i), bytes, expected);
}

void ExtentReader::check_part(std::size_t i, std::size_t p, std::size_t parts) const {
  if (p >= parts) fail("{}: sample {} has no part {}, only {} parts", file_.path().string(), i, p, parts);
}

void ExtentReader::read(std::size_t i, std::span<std::byte> into) const {
  const Extent at = extent(number(i));
  check_buffer(i, at.offset, into.size(), at.bytes);
  file_.read(at.offset, into, i);
}

std::span<const std::byte> ExtentReader::view(std::size_t i) const {
  const Extent at = extent(number(i));
  return file_.view(at.offset, at.bytes, i);
}

std::vector<Part> ExtentReader::parts(std::size_t i) const {
  const Extent at = extent(number(i));
  return {{.kind = "", .bytes = at.bytes, .shard = name_, .offset = at.offset, .xxh3 = 0}};
}

void ExtentReader::read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const {
  check_part(number(i), p, 1);
  read(i, into);
}

void ExtentReader::read_whole_file(const ReadProgress& progress) const {
  Stream stream(file_, progress);
  while (!stream.next().empty()) {
  }
}

std::string ExtentReader::fingerprint() const {
  return fingerprint_of(*this);
}

std::string fingerprint_of(const Reader& reader) {
  Hasher hasher;
  const auto add_number = [&](std::uint64_t number) { hasher.update(std::as_bytes(std::span(&number, 1))); };
  const std::size_t samples = reader.size();
  add_number(static_cast<std::uint64_t>(reader.token_type()));
  add_number(samples);
  const bool has_digests = reader.parts(0).front().xxh3 != 0;
  for (std::size_t i = 0; i < samples; ++i) {
    add_number(reader.bytes(i));
    if (!has_digests) continue;
    for (const Part& part : reader.parts(i)) {
      hasher.update(std::as_bytes(std::span(part.kind)));
      add_number(part.xxh3);
    }
  }
  if (has_digests) return to_hex(hasher.digest());
  const std::size_t hashed = std::min(samples, kHashedSamples);
  std::vector<std::byte> buffer(kHashedBytes);
  for (std::size_t n = 0; n < hashed; ++n) {
    const std::size_t i = hashed == 1 ? 0 : n * (samples - 1) / (hashed - 1);
    if (reader.bytes(i) > kHashedBytes) {
      if (reader.can_view()) hasher.update(reader.view(i).first(kHashedBytes));
      continue;
    }
    const auto payload = std::span(buffer).first(reader.bytes(i));
    reader.read(i, payload);
    hasher.update(payload);
  }
  return to_hex(hasher.digest());
}

}  // namespace lockstep::pack
