// Writes a dataset for Megatron-Core: PREFIX.bin has the tokens of all sequences, and PREFIX.idx the length
// and offset of each sequence and the sequences of each document. The bytes are those that Megatron-Core's
// own builder writes.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "staging/pack/reader.h"

namespace lockstep::pack {

/// The calls follow the order of the data: add_sequence for each sequence, end_document after the last sequence of each
/// document, and finish at the end. Until finish both files have hidden names (".NAME.bin.unfinished"). Without finish
/// the destructor removes them; the next process replaces the files of a killed one. Memory: 4 bytes for each sequence and
/// 8 for each document.
class MegatronWriter {
 public:
  /// Begins PREFIX.bin and PREFIX.idx with tokens of this type. Megatron has no u32 and u64, so these are
  /// written as i32 and i64. Throws Error if one of the files exists or another process is writing them;
  /// UsageError for the type none.
  MegatronWriter(const std::filesystem::path& prefix, TokenType type);
  MegatronWriter(const MegatronWriter&) = delete;
  MegatronWriter& operator=(const MegatronWriter&) = delete;
  ~MegatronWriter();

  /// The type in which tokens are written.
  TokenType written_type() const { return written_; }

  /// Adds one sequence of tokens of the constructor's type. Throws Error naming the sequence if its bytes are not a
  /// multiple of the token size or it has more than 2^31 - 1 tokens, and naming the token if it does not fit into the
  /// written type.
  void add_sequence(std::span<const std::byte> tokens);

  /// Makes a document of the sequences since the last call. Megatron's samplers require each sequence to be
  /// in one.
  void end_document();

  std::uint64_t sequences() const { return lengths_.size(); }
  std::uint64_t documents() const { return documents_.size() - 1; }
  /// Bytes of PREFIX.bin so far.
  std::uint64_t data_bytes() const { return data_bytes_; }

  /// Syncs the data and gives both files their final names, the .idx last. Throws Error if there is no
  /// sequence, or if there are sequences after the last end_document().
  void finish();

 private:
  class Data;

  void write_index(const std::filesystem::path& file) const;

  std::filesystem::path prefix_;
  std::string name_;  // of the .idx, for messages
  TokenType from_;
  TokenType written_;
  std::unique_ptr<Data> data_;
  std::uint64_t data_bytes_ = 0;
  std::vector<std::int32_t> lengths_;
  /// The sequence with which each document begins, and the end of the last one.
  std::vector<std::int64_t> documents_ = {0};
};

}  // namespace lockstep::pack
