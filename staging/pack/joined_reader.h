// Presents several readers as one: the samples of the first, then those of the second, and so on. Used for a data set
// of many files and for a mixture of several packs.
//
// Threads: as Reader.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "staging/pack/reader.h"

namespace lockstep::pack {

struct NamedReader {
  std::string name;  ///< for error messages
  const Reader* reader = nullptr;
};

class JoinedReader : public Reader {
 public:
  /// The readers must outlive this object. Throws UsageError if there are none, and Error naming two whose
  /// samples are of different types.
  explicit JoinedReader(std::vector<NamedReader> readers);

  const std::vector<NamedReader>& readers() const { return readers_; }

  std::size_t size() const override { return ends_.back(); }
  std::uint64_t bytes(std::size_t i) const override;
  std::uint64_t tokens(std::size_t i) const override;
  int token_bytes() const override { return readers_.front().reader->token_bytes(); }
  TokenType token_type() const override { return readers_.front().reader->token_type(); }
  std::string_view key(std::size_t i) const override;
  void read(std::size_t i, std::span<std::byte> into) const override;
  std::span<const std::byte> view(std::size_t i) const override;
  std::span<const std::byte> unchecked_view(std::size_t i) const override;
  bool can_view() const override;
  bool safe_to_map() const override;
  bool indexed() const override;
  std::vector<Part> parts(std::size_t i) const override;
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override;
  /// The readers' fingerprints with '+' between them.
  std::string fingerprint() const override;
  void verify(const ReadProgress& progress) const override;
  using Reader::verify;

 protected:
  /// The reader that holds sample i, and the sample's number there. Throws Error if there is no sample i.
  std::pair<const Reader*, std::size_t> find(std::size_t i) const;

 private:
  std::vector<NamedReader> readers_;
  std::vector<std::size_t> ends_;  ///< the number after each reader's last sample
};

/// The files of one data set as one reader. Samples are named by their numbers, and the fingerprint does not
/// depend on how they are divided into files. Throws Error if their tokens are of different types.
std::unique_ptr<Reader> join(std::vector<std::unique_ptr<Reader>> readers,
                             const std::vector<std::string>& names);

}  // namespace lockstep::pack
