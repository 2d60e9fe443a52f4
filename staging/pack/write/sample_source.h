// The samples of a pack as convert() hands them on: read, checked against the digests that the source has,
// and with tokens turned into the type that the target wants.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "staging/pack/reader.h"

namespace lockstep::pack {

class SampleSource {
 public:
  explicit SampleSource(const std::filesystem::path& source);

  const Reader& reader() const { return *reader_; }
  std::size_t size() const { return reader_->size(); }
  /// The source is a pack of tar shards, so that keys and kinds were files' names.
  bool of_files() const { return of_files_; }

  /// The bytes of a part; they hold until the next call. Throws Error where they are not what the source's
  /// digest says.
  std::span<const std::byte> part(std::size_t i, std::size_t p, const Part& part);

  /// "SOURCE, sample 7 (key)"
  std::string where(std::size_t i) const;

 private:
  std::filesystem::path source_;
  std::unique_ptr<Reader> reader_;
  bool of_files_;
  std::vector<std::byte> buffer_;
};

/// How tokens of any type become those of a tar pack: unsigned, of 2 or 4 bytes.
class TarTokens {
 public:
  explicit TarTokens(TokenType from);

  /// 2, 4, or 0 where the samples are no whole numbers and stay the bytes they are.
  int bytes() const { return bytes_; }
  /// Throws Error, naming `where`, for a number that is negative or too large. The result holds until the
  /// next call.
  std::span<const std::byte> convert(std::span<const std::byte> payload, const std::string& where);

 private:
  TokenType from_;
  int bytes_ = 0;
  bool as_it_is_ = true;
  std::vector<std::int64_t> numbers_;
  std::vector<std::byte> converted_;
};

}  // namespace lockstep::pack
