// The common part of the readers of single files that store each sample in one piece.
//
// Threads: as Reader.
#pragma once

#include <string>
#include <vector>

#include "staging/pack/formats/data_file.h"
#include "staging/pack/formats/number_keys.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {

/// A derived class implements extent() and verify().
class ExtentReader : public Reader {
 public:
  std::size_t size() const override { return samples_; }
  std::uint64_t bytes(std::size_t i) const override { return extent(number(i)).bytes; }
  std::uint64_t tokens(std::size_t i) const override {
    return type_ == TokenType::none ? 0 : bytes(i) / static_cast<unsigned>(bytes_of(type_));
  }
  int token_bytes() const override { return bytes_of(type_); }
  TokenType token_type() const override { return type_; }
  std::string_view key(std::size_t i) const override { return keys_[number(i)]; }
  void read(std::size_t i, std::span<std::byte> into) const override;
  std::span<const std::byte> view(std::size_t i) const override;
  bool safe_to_map() const override { return can_view() && pack::safe_to_map(file_.path()); }
  std::vector<Part> parts(std::size_t i) const override;
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override;
  std::string fingerprint() const override;

 protected:
  struct Extent {
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  /// `name` is the file, relative to the folder that was opened. Throws NoSamples if there are none.
  ExtentReader(const std::filesystem::path& folder, std::string name, std::size_t samples, TokenType type);

  /// Where sample i lies in the file. i is less than size(), and the extent must be inside the file.
  virtual Extent extent(std::size_t i) const = 0;

  const DataFile& file() const { return file_; }
  const std::string& name() const { return name_; }

  /// Reads all bytes once. For a format without digests verify() can do no more.
  void read_whole_file(const ReadProgress& progress) const;

  /// Returns i. Throws Error if there is no such sample.
  std::size_t number(std::size_t i) const;
  /// Throws Error if a buffer for sample i has the wrong size.
  void check_buffer(std::size_t i, std::uint64_t offset, std::size_t bytes, std::uint64_t expected) const;
  /// Throws Error if sample i, which has `parts` parts, has no part p.
  void check_part(std::size_t i, std::size_t p, std::size_t parts) const;

 private:
  DataFile file_;
  std::string name_;
  std::size_t samples_;
  TokenType type_;
  NumberKeys keys_;
};

/// The fingerprint of any reader (Reader::fingerprint). If parts() has digests, it includes all of them;
/// otherwise the number, type and lengths of the samples and the content of up to 64.
std::string fingerprint_of(const Reader& reader);

}  // namespace lockstep::pack
