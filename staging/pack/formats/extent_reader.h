// What the readers of single files have in common: samples are numbered, and each lies in one piece somewhere
// in one file.
//
// Threads: as Reader.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "staging/pack/formats/data_file.h"
#include "staging/pack/formats/number_keys.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {

/// A derived class says where sample i lies; the rest follows.
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
  std::vector<Part> parts(std::size_t i) const override;
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override;
  std::string fingerprint() const override;

 protected:
  struct Extent {
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  /// `name` is the file below the folder that was opened. Throws Error where there are no samples.
  ExtentReader(const std::filesystem::path& folder, std::string name, std::size_t samples, TokenType type);

  /// Of sample i, which is less than size(); inside the file.
  virtual Extent extent(std::size_t i) const = 0;

  const DataFile& file() const { return file_; }
  const std::string& name() const { return name_; }

  /// i, or an Error where there is no such sample.
  std::size_t number(std::size_t i) const;
  /// Throws Error where a buffer for part p of sample i has not the right size, or there is no such part.
  void check_buffer(std::size_t i, std::uint64_t offset, std::size_t given, std::uint64_t needed) const;
  void check_part(std::size_t i, std::size_t p, std::size_t parts) const;

 private:
  DataFile file_;
  std::string name_;
  std::size_t samples_;
  TokenType type_;
  NumberKeys keys_;
};

/// A fingerprint for samples without digests: their number, type and lengths, and the content of up to 64 of
/// them. Of samples with digests (parts() says so), all of those.
std::string fingerprint_of(const Reader& reader);

/// Several readers as one: the samples of the first, then those of the next. Throws Error where their tokens
/// are of different types.
std::unique_ptr<Reader> join(std::vector<std::unique_ptr<Reader>> readers,
                             const std::vector<std::string>& names);

}  // namespace lockstep::pack
