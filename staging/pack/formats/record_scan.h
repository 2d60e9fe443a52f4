// Finds the records of TFRecord and RecordIO files, which hold no table of them: one pass over the file that
// checks whatever the format allows.
//
// Threads: safe from any; blocks belong to the caller's thread.
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

/// One record. RecordIO cuts a payload into pieces where it holds the format's own magic; the magic stands
/// between two pieces and is not in the file.
struct Record {
  std::uint64_t begin;            ///< of the record's header
  std::span<const Piece> pieces;  ///< at least one
  std::uint64_t xxh3;             ///< of the whole payload
};

using EachRecord = std::function<void(const Record&)>;

/// Checks lengths' and payloads' checksums. Throws Error naming file, record and offset.
void scan_tfrecord(Blocks& blocks, std::uint64_t size, const std::filesystem::path& name,
                   const EachRecord& each);

/// The magic between two pieces of a payload of RecordIO, and at the begin of each.
inline constexpr std::uint32_t kRecordMagic = 0xced7230aU;

/// Checks magic, flags and lengths; the format has no checksums. Throws Error naming file, record and offset.
void scan_recordio(Blocks& blocks, std::uint64_t size, const std::filesystem::path& name,
                   const EachRecord& each);

}  // namespace lockstep::pack
