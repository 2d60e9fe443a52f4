// Random access to packed samples: one interface, whatever the format. Training code wants the number of
// samples and their lengths without touching the payload, then any sample by one pread or one pointer into a
// mapping. docs/users/formats.md says what is particular about each format.
//
// Threads: open() is safe from any thread; after it every const member is safe from any thread, without locks
// held while data is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/formats/token_type.h"

namespace lockstep::pack {

/// One file of a sample. A sample has one part, or several where files share a base name ("cat.jpg",
/// "cat.json").
struct Part {
  std::string kind;          ///< what follows the first dot of the file's name ("jpg", "seg.png"), or ""
  std::uint64_t bytes = 0;   ///< length of the payload
  std::string shard;         ///< the file that holds it, below the folder that was opened
  std::uint64_t offset = 0;  ///< of the payload in that file, in bytes; 0 where the file is compressed
  std::uint64_t xxh3 = 0;    ///< XXH3-64 of the payload; 0 where no index holds it
};

/// Samples of one pack, numbered from 0 in the order in which they were packed. Numbers out of range throw
/// Error.
class Reader {
 public:
  virtual ~Reader() = default;

  /// Number of samples.
  virtual std::size_t size() const = 0;

  /// Length in bytes of sample i's payload (of its first part).
  virtual std::uint64_t bytes(std::size_t i) const = 0;

  /// bytes(i) / token_bytes(); 0 where the pack holds no tokens.
  virtual std::uint64_t tokens(std::size_t i) const = 0;

  /// Bytes of a token, 1, 2, 4 or 8; 0 where the samples are no tokens.
  virtual int token_bytes() const = 0;

  /// The tokens' type; pack::widen() (token_type.h) turns any of them into 64-bit integers. Packs of tar
  /// shards have u16, u32 or none.
  virtual TokenType token_type() const {
    if (token_bytes() == 2) return TokenType::u16;
    return token_bytes() == 4 ? TokenType::u32 : TokenType::none;
  }

  /// The sample's name: its path in the packed folder without what follows the file name's first dot, the key
  /// in a database (any bytes), or its number where the format has no names.
  virtual std::string_view key(std::size_t i) const = 0;

  /// Reads sample i with pread; `into` is exactly bytes(i) long. Throws Error naming shard, sample and
  /// offset, also where the bytes do not match the sample's digest (OpenOptions::check_digests).
  virtual void read(std::size_t i, std::span<std::byte> into) const = 0;

  /// Sample i in a mapping of its shard, valid while the reader lives. Touching it is SIGBUS when someone
  /// truncates the file meanwhile; read() gives an Error then. Throws Error where can_view() is false, or
  /// where this one sample does not lie in one piece. Each call compares the bytes with the sample's digest,
  /// as read() does, since the file may have been overwritten since the last one.
  virtual std::span<const std::byte> view(std::size_t i) const = 0;

  /// As view(), without looking at the bytes: to fetch them early, or to ask where they lie.
  virtual std::span<const std::byte> unchecked_view(std::size_t i) const { return view(i); }

  /// False where samples are compressed or lie in pieces in their file, so that only read() gives them.
  virtual bool can_view() const { return true; }

  /// False where all samples had to be looked for, as nothing said where they lie, and where that could be
  /// written down neither beside the data nor in the user's cache folder: the next one has to look again.
  virtual bool indexed() const { return true; }

  /// All parts of sample i, the first one being what bytes(), read() and view() speak of.
  virtual std::vector<Part> parts(std::size_t i) const = 0;

  /// As read(), for part p of sample i.
  virtual void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const = 0;

  /// 32 hex digits of data and order: the same for a copy, another sharding or another place, and different
  /// once a key, a length, a byte or the order differs. Costs one pass over the index. Formats without
  /// digests (all but tar packs, TFRecord and RecordIO) give their bytes a bounded look only: the lengths,
  /// and the content of up to 64 samples.
  virtual std::string fingerprint() const = 0;

  /// Reads everything and checks it against whatever digests, checksums and tables the format has. Throws
  /// Error naming the first shard, sample and offset that does not fit.
  virtual void verify() const = 0;
};

struct OpenOptions {
  /// read(), read_part() and view() compare each sample with its digest, in formats that have them (tar
  /// packs, TFRecord, RecordIO). It takes a pass over the bytes, which are in the processor's cache
  /// afterwards. Off: where the storage checks them, or where small pieces of very long samples are used
  /// (TooLong::split), as the whole sample is checked for each.
  bool check_digests = true;
};

/// Opens a folder of shards, one of its shards (its samples only) or its index file; or a folder of files of
/// one other format, one such file, "FILE.h5:/PATH" for one dataset of several, or the prefix of a Megatron
/// pair. Checks the index and the shards' sizes, not their content. Throws Error naming what does not fit, or
/// that the source is not packed.
std::unique_ptr<Reader> open(const std::filesystem::path& source, const OpenOptions& options = {});

}  // namespace lockstep::pack
