// Random access to packed samples: one interface for all formats. Training code asks for the number of
// samples and their lengths without reading the payload, then reads any sample with one pread or through a
// pointer into a mapping. docs/users/formats.md describes what is special about each format.
//
// Threads: open() is safe from any thread. All const members are safe from any thread, and hold no lock while
// they read data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The types of tokens. All are little-endian.

namespace lockstep::pack {

enum class TokenType : std::uint8_t { none, u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 };

/// 1, 2, 4 or 8; 0 for none.
constexpr int bytes_of(TokenType type) {
  constexpr std::array<int, 11> kBytes = {0, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
  return kBytes.at(static_cast<std::size_t>(type));
}

/// "u16", "i32", …; "none".
std::string_view name_of(TokenType type);

/// Converts tokens of any type to 64-bit integers, as training needs them. `from` holds into.size() tokens at
/// any address. Throws Error if the type is none, or naming the first u64 token above 2^63 - 1 and its
/// position.
void widen(TokenType type, std::span<const std::byte> from, std::span<std::int64_t> into);

/// One file of a sample. A sample has several parts if files share a base name ("cat.jpg" and "cat.json"),
/// and one part otherwise.
struct Part {
  std::string kind;          ///< the file name after its first dot ("jpg", "seg.png"), or ""
  std::uint64_t bytes = 0;   ///< length of the payload
  std::string shard;         ///< the file that holds the payload, relative to the folder that was opened
  std::uint64_t offset = 0;  ///< of the payload in that file, in bytes; 0 if the file is compressed
  std::uint64_t xxh3 = 0;    ///< XXH3-64 of the payload; 0 if no index holds it
};

/// Receives the number of bytes that were read since the last call.
using ReadProgress = std::function<void(std::uint64_t bytes)>;

/// The samples of one pack, numbered from 0 in the order in which they were packed. A number out of range
/// throws Error.
class Reader {
 public:
  virtual ~Reader() = default;

  /// Number of samples.
  virtual std::size_t size() const = 0;

  /// Length in bytes of sample i's payload (its first part).
  virtual std::uint64_t bytes(std::size_t i) const = 0;

  /// bytes(i) / token_bytes(); 0 if the samples are not tokens.
  virtual std::uint64_t tokens(std::size_t i) const = 0;

  /// Bytes of a token: 1, 2, 4 or 8; 0 if the samples are not tokens.
  virtual int token_bytes() const = 0;

  /// The type of the tokens; pack::widen() converts any of them to 64-bit integers. Tar packs
  /// have u16, u32 or none.
  virtual TokenType token_type() const {
    if (token_bytes() == 2) return TokenType::u16;
    return token_bytes() == 4 ? TokenType::u32 : TokenType::none;
  }

  /// The sample's name: the path in the packed folder up to the file name's first dot, the key in a database
  /// (any bytes), or the sample's number if the format has no names.
  virtual std::string_view key(std::size_t i) const = 0;

  /// Reads sample i with pread; `into` must be exactly bytes(i) long. Throws Error naming shard, sample and
  /// offset, also if the bytes do not match the sample's digest (OpenOptions::check_digests).
  virtual void read(std::size_t i, std::span<std::byte> into) const = 0;

  /// Sample i in a mapping of its shard, valid while the reader lives. If somebody truncates the file, an
  /// access to the mapping ends the process with SIGBUS; read() throws Error instead. Throws Error if
  /// can_view() is false or if this sample is stored in several pieces. Each call compares the bytes with the
  /// sample's digest, as read() does, since the file may have been overwritten since the last call.
  virtual std::span<const std::byte> view(std::size_t i) const = 0;

  /// As view(), without reading the bytes: to prefetch them, or to learn their address.
  virtual std::span<const std::byte> unchecked_view(std::size_t i) const { return view(i); }

  /// False if samples are compressed or stored in several pieces, so that only read() works.
  virtual bool can_view() const { return true; }

  /// Whether view() is possible and safe: nobody may write to the files, and they are on a file system of
  /// this node (mapped_file.h).
  virtual bool safe_to_map() const { return false; }

  /// False if open() had to scan the data for samples and could store the index neither beside the data nor in the
  /// user's cache folder. The next open() must scan again.
  virtual bool indexed() const { return true; }

  /// All parts of sample i. bytes(), read() and view() use the first one.
  virtual std::vector<Part> parts(std::size_t i) const = 0;

  /// As read(), for part p of sample i.
  virtual void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const = 0;

  /// 32 hex digits that identify the data and their order. A copy, another sharding or another path gives the
  /// same digits; a different key, length, byte or order gives others. The cost is one pass over the index.
  /// Formats without digests (all but tar packs, TFRecord and RecordIO) include the lengths and the content
  /// of up to 64 samples only.
  virtual std::string fingerprint() const = 0;

  /// Lines for the user about what the data have that may not be meant: samples whose parts differ from the others',
  /// bytes after the end of a tar file, entries of a database that describe it, empty documents. May read a little of
  /// each file.
  virtual std::vector<std::string> notes() const;

  /// Reads everything and compares it with the digests, checksums and tables that the format has. Throws
  /// Error naming the first shard, sample and offset that does not match. Calls `progress` after
  /// each piece, in the calling thread.
  virtual void verify(const ReadProgress& progress) const = 0;
  void verify() const {
    verify([](std::uint64_t) {});
  }
};

struct OpenOptions {
  /// read(), read_part() and view() compare each sample with its digest, in formats that have digests (tar packs,
  /// TFRecord, RecordIO). The cost is one pass over the bytes, which brings them into the processor's cache. Switch it
  /// off if the storage checks the data, or if small pieces of very long samples are used (TooLong::split): each piece
  /// would check the complete sample.
  bool check_digests = true;
  /// Leaves out the entries of LMDB with these keys, which are not samples. Patterns as of a shell: "__*__".
  std::vector<std::string> leave_out = {};
};

/// Opens a tar pack by its folder, its index file, or one of its shards (the samples of that shard only).
/// Opens other formats by a folder, one file, "FILE.h5:/PATH" for one of several HDF5 datasets, or the prefix
/// of a Megatron pair. Checks the index and the sizes of the shards, but not their content. Throws Error
/// naming what does not match, or if the source is not packed.
std::unique_ptr<Reader> open(const std::filesystem::path& source, const OpenOptions& options = {});

// Presents several readers as one: the samples of the first, then those of the second, and so on. Used for a data set
// of many files and for a mixture of several packs.

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
  std::vector<std::string> notes() const override;
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
