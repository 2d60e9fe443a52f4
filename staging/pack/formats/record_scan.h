// Finds the records of TFRecord and RecordIO files, which have no table of records, in one pass over the file. Checks
// everything that the format allows to check.
//
// Threads: safe from any; the blocks are used by the calling thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "staging/pack/formats/data_file.h"

namespace lockstep::pack {

/// A piece of a record's payload.
struct Piece {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// One record. RecordIO cuts a payload into pieces where it contains the magic number of the format. The
/// magic number belongs to the payload between two pieces, and is not in the file there.
struct Record {
  std::uint64_t begin;            ///< of the record's header
  std::span<const Piece> pieces;  ///< at least one
  std::uint64_t xxh3;             ///< of the complete payload
};

using EachRecord = std::function<void(const Record&)>;

/// Checks the checksums of lengths and payloads. Throws Error naming file, record and offset.
void scan_tfrecord(const NextBlock& next, std::uint64_t size, const std::filesystem::path& name,
                   const EachRecord& each);

/// RecordIO's magic number: begins each piece, and belongs to the payload between two pieces.
inline constexpr std::uint32_t kRecordMagic = 0xced7230aU;

/// Checks magic numbers, flags and lengths; the format has no checksums. Throws Error naming file, record and
/// offset.
void scan_recordio(const NextBlock& next, std::uint64_t size, const std::filesystem::path& name,
                   const EachRecord& each);

}  // namespace lockstep::pack
