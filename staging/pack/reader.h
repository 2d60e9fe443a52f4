// Random access to packed samples: one interface, whatever the format. Training code wants the number of
// samples and their lengths without touching the payload, then any sample by one pread or one pointer into a
// mapping.
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

namespace lockstep::pack {

/// One file of a sample. A sample has one part, or several where files share a base name ("cat.jpg",
/// "cat.json").
struct Part {
  std::string kind;          ///< what follows the first dot of the file's name ("jpg", "seg.png"), or ""
  std::uint64_t bytes = 0;   ///< length of the payload
  std::string shard;         ///< file name of the shard that holds it
  std::uint64_t offset = 0;  ///< of the payload in the shard, in bytes
  std::uint64_t xxh3 = 0;    ///< XXH3-64 of the payload
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

  /// 2 or 4 (little-endian unsigned integers) for packs of tokens, 0 otherwise.
  virtual int token_bytes() const = 0;

  /// The sample's name: its path in the packed folder without what follows the file name's first dot.
  virtual std::string_view key(std::size_t i) const = 0;

  /// Reads sample i with pread; `into` is exactly bytes(i) long. Throws Error naming shard, sample and
  /// offset.
  virtual void read(std::size_t i, std::span<std::byte> into) const = 0;

  /// Sample i in a mapping of its shard, valid while the reader lives. Touching it is SIGBUS when someone
  /// truncates the file meanwhile; read() gives an Error then.
  virtual std::span<const std::byte> view(std::size_t i) const = 0;

  /// All parts of sample i, the first one being what bytes(), read() and view() speak of.
  virtual std::vector<Part> parts(std::size_t i) const = 0;

  /// As read(), for part p of sample i.
  virtual void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const = 0;

  /// 32 hex digits of data and order: the same for a copy, another sharding or another place, and different
  /// once a key, a length, a byte or the order differs. Costs one pass over the index.
  virtual std::string fingerprint() const = 0;

  /// Reads everything and checks it against the index's digests. Throws Error naming the first shard, sample
  /// and offset that does not fit.
  virtual void verify() const = 0;
};

/// Opens a folder of shards, one of its shards (its samples only) or its index file. Checks the index and the
/// shards' sizes, not their content. Throws Error naming what does not fit, or that the source is not packed.
std::unique_ptr<Reader> open(const std::filesystem::path& source);

}  // namespace lockstep::pack
