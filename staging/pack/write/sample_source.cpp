#include "staging/pack/write/sample_source.h"

#include <cstring>
#include <limits>

#include "common/error.h"
#include "staging/pack/locate.h"

namespace lockstep::pack {
namespace {

bool is_tar_pack(const std::filesystem::path& source) {
  try {
    locate(source);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

SampleSource::SampleSource(const std::filesystem::path& source, const OpenOptions& options)
    : source_(source), reader_(open(source, options)), of_files_(is_tar_pack(source)) {
}

std::string SampleSource::where(std::size_t i) const {
  return fmt::format("{}, sample {} ({})", source_.string(), i, reader_->key(i));
}

std::span<const std::byte> SampleSource::part(std::size_t i, std::size_t p, const Part& part) {
  constexpr std::uint64_t kMapped = std::uint64_t{16} << 20;  // larger parts are mapped if possible
  std::span<const std::byte> payload;
  if (p == 0 && part.bytes > kMapped && reader_->can_view()) {
    payload = reader_->view(i);
  } else {
    buffer_.resize(part.bytes);
    reader_->read_part(i, p, buffer_);
    payload = buffer_;
  }
  return payload;
}

TarTokens::TarTokens(TokenType from) : from_(from) {
  if (from == TokenType::none || from == TokenType::f32 || from == TokenType::f64) return;
  bytes_ = bytes_of(from) <= 2 ? 2 : 4;
  as_it_is_ = from == TokenType::u16 || from == TokenType::u32;
}

std::span<const std::byte> TarTokens::convert(std::span<const std::byte> payload, const std::string& where) {
  const auto from_bytes = static_cast<std::size_t>(bytes_of(from_));
  if (as_it_is_ || from_bytes == 0) return payload;
  numbers_.resize(payload.size() / from_bytes);
  const auto max = static_cast<std::int64_t>(bytes_ == 2 ? std::numeric_limits<std::uint16_t>::max()
                                                         : std::numeric_limits<std::uint32_t>::max());
  const auto refuse = [&](std::size_t n, auto number) {
    fail("{}: token {} is {}, but tokens of tar shards must be between 0 and {}", where, n, number, max);
  };
  if (from_ == TokenType::u64) {  // may exceed the signed numbers that widen() makes
    for (std::size_t n = 0; n < numbers_.size(); ++n) {
      std::uint64_t number = 0;
      std::memcpy(&number, payload.data() + n * sizeof(number), sizeof(number));
      if (number > static_cast<std::uint64_t>(max)) refuse(n, number);
    }
  }
  widen(from_, payload, numbers_);
  const auto width = static_cast<std::size_t>(bytes_);
  converted_.resize(numbers_.size() * width);
  for (std::size_t n = 0; n < numbers_.size(); ++n) {
    if (numbers_[n] < 0 || numbers_[n] > max) refuse(n, numbers_[n]);
    std::memcpy(converted_.data() + n * width, &numbers_[n], width);
  }
  return converted_;
}

}  // namespace lockstep::pack
