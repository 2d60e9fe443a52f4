// The samples that convert() reads: checked against the source's digests, with tokens converted to the target's type.
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
  explicit SampleSource(const std::filesystem::path& source, const OpenOptions& options = {});

  const Reader& reader() const { return *reader_; }
  std::size_t size() const { return reader_->size(); }
  /// Whether the source is a tar pack, whose keys and kinds were file names.
  bool of_files() const { return of_files_; }

  /// The bytes of a part, valid until the next call. Throws Error if they do not match the digest.
  std::span<const std::byte> part(std::size_t i, std::size_t p, const Part& part);

  /// "SOURCE, sample 7 (key)"
  std::string where(std::size_t i) const;

 private:
  std::filesystem::path source_;
  std::unique_ptr<Reader> reader_;
  bool of_files_;
  std::vector<std::byte> buffer_;
};

/// Converts tokens of any type to those of a tar pack, which are unsigned and have 2 or 4 bytes.
class TarTokens {
 public:
  explicit TarTokens(TokenType from);

  /// 2 or 4; 0 if the samples are not integers and are not converted.
  int bytes() const { return bytes_; }
  /// Throws Error naming `where` if a number is negative or too large. The result is valid until the next
  /// call.
  std::span<const std::byte> convert(std::span<const std::byte> payload, const std::string& where);

 private:
  TokenType from_;
  int bytes_ = 0;
  bool as_it_is_ = true;
  std::vector<std::int64_t> numbers_;
  std::vector<std::byte> converted_;
};

}  // namespace lockstep::pack
