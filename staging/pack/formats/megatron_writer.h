// Writes a dataset for Megatron-Core: PREFIX.bin with the tokens of all sequences and PREFIX.idx that says
// where each begins and which sequences make up a document, the same bytes as Megatron-Core's own builder
// gives.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "staging/pack/formats/token_type.h"

namespace lockstep::pack {

/// Called in the order of the data: add_sequence for each sequence, end_document after the last one of each
/// document, finish at the end. Until then both files have hidden names (".NAME.bin.unfinished"), and nothing
/// stays of them if finish() is not reached; what a killed process left is replaced by the next one. Memory
/// does not grow with the data.
class MegatronWriter {
 public:
  /// Begins PREFIX.bin and PREFIX.idx with tokens of this type. Megatron has no u32 and u64: these are
  /// written as i32 and i64. Throws Error where one of the files exists already or another process is writing
  /// them, UsageError for the type none.
  MegatronWriter(const std::filesystem::path& prefix, TokenType type);
  MegatronWriter(const MegatronWriter&) = delete;
  MegatronWriter& operator=(const MegatronWriter&) = delete;
  ~MegatronWriter();

  /// The type in which tokens are written.
  TokenType written_type() const;

  /// Adds one sequence, whole tokens of the type that was given to the constructor. Throws Error where they
  /// are not whole, more than 2^31 - 1, or too large for the type that is written, naming the sequence and
  /// the token.
  void add_sequence(std::span<const std::byte> tokens);

  /// The sequences since the last call are a document. Megatron's samplers want every sequence to be in one.
  void end_document();

  std::uint64_t sequences() const;
  std::uint64_t documents() const;
  /// Bytes of PREFIX.bin so far.
  std::uint64_t data_bytes() const;

  /// Makes the data durable and gives both files their names, the .idx last. Throws Error where there is no
  /// sequence, or sequences after the last end_document().
  void finish();

 private:
  class Files;
  std::unique_ptr<Files> files_;
};

}  // namespace lockstep::pack
