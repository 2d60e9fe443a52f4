// The .idx of Megatron-Core's indexed datasets: the length and offset of each sequence in the .bin beside it,
// and the sequences of each document. The file is mapped, not parsed.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>

#include "staging/pack/mapped_file.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {

/// A checked index: its tables are consistent, whatever bytes the file had.
class MegatronIndex {
 public:
  /// Maps and checks a file. Throws Error naming it, the sequence and what is wrong.
  static MegatronIndex load(const std::filesystem::path& file);

  /// The same for bytes in memory, which must outlive the index.
  static MegatronIndex parse(std::span<const std::byte> bytes, const std::filesystem::path& name);

  const std::filesystem::path& file() const { return file_; }
  TokenType type() const { return type_; }
  std::size_t sequences() const { return sequences_; }
  /// The size that the .bin must have.
  std::uint64_t data_bytes() const { return data_bytes_; }

  /// Tokens of sequence i.
  std::uint64_t length(std::size_t i) const {
    return static_cast<std::uint64_t>(at<std::int32_t>(lengths_, i));
  }
  /// The offset of sequence i in the .bin, in bytes.
  std::uint64_t offset(std::size_t i) const {
    return static_cast<std::uint64_t>(at<std::int64_t>(offsets_, i));
  }

  /// The number of entries in the table of documents, which is the number of documents + 1; 0 if the file has no such
  /// table (fairseq). Document d consists of the sequences from document(d) to document(d + 1) - 1.
  std::size_t document_entries() const { return document_entries_; }
  std::uint64_t document(std::size_t d) const {
    return static_cast<std::uint64_t>(at<std::int64_t>(documents_, d));
  }

  /// All bytes of the file.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  /// Reads an entry at any address: the tables are not aligned.
  template <typename T>
  static T at(const std::byte* table, std::size_t i) {
    T number;
    std::memcpy(&number, table + i * sizeof(T), sizeof(T));
    return number;
  }
  void check_type(unsigned code);
  void check_sequences();
  void check_documents() const;

  std::filesystem::path file_;
  MappedFile mapping_;
  std::span<const std::byte> bytes_;
  TokenType type_ = TokenType::none;
  std::size_t sequences_ = 0;
  std::size_t document_entries_ = 0;
  std::uint64_t data_bytes_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* documents_ = nullptr;
};

/// For messages about an index with the magic TNTIDX.
inline constexpr std::string_view kOldMegatron =
    "it is an index of the old format of Megatron and fairseq (TNTIDX): preprocess the text again with --dataset-impl mmap";

/// The path of the .bin for an .idx.
std::filesystem::path megatron_data(const std::filesystem::path& index);

/// Checks that the .bin beside an index is a regular file of data_bytes() bytes. Throws Error naming both
/// files and the first sequence that was cut.
void check_megatron_data(const MegatronIndex& index);

}  // namespace lockstep::pack
