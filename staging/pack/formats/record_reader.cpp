// Reads the records of TFRecord and RecordIO files, which a side index lists.

#include <algorithm>
#include <optional>

#include "common/error.h"
#include "staging/pack/digest.h"
#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/record_scan.h"
#include "staging/pack/formats/recordio_keys.h"
#include "staging/pack/formats/side_index.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using Scan = void (*)(const NextBlock&, std::uint64_t, const fs::path&, const EachRecord&);

/// In the index, the pieces of a record are the parts of a sample. The first part has the digest of the
/// record.
void add_record(IndexBuilder& builder, std::string_view key, const Record& record) {
  builder.add_sample(key);
  for (const Piece& piece : record.pieces) {
    const bool first = &piece == record.pieces.data();
    builder.add_part("", piece.offset, piece.bytes, first ? record.xxh3 : 0);
  }
}

SideIndex side_index(const DataFile& file, std::string_view format, Scan scan, const RecordioKeys* keys) {
  const std::string also = fmt::format("{} {}", format, keys == nullptr ? "" : keys->state());
  return {
      file, also, [&](IndexBuilder& builder) {
        Stream stream(file);
        scan([&] { return stream.next(); }, file.size(), file.path(),
             [&](const Record& record) {
               add_record(builder, keys == nullptr ? "-" : keys->at(record.begin), record);
             });
        if (keys != nullptr && keys->size() != builder.samples())
          fail("{} has {} records, but its .idx has {} keys: make the .idx again with rec2idx, or remove it",
               file.path().string(), builder.samples(), keys->size());
      }};
}

class RecordReader : public ExtentReader {
 public:
  RecordReader(const fs::path& folder, const std::string& file, SideIndex index, Scan scan, bool has_keys,
               bool check_digests)
      : ExtentReader(folder, file, index->samples(), TokenType::none),
        index_(std::move(index)),
        scan_(scan),
        has_keys_(has_keys),
        check_digests_(check_digests),
        whole_(index_->parts() == index_->samples()) {}

  std::string_view key(std::size_t i) const override {
    return has_keys_ ? index_->key(number(i)) : ExtentReader::key(i);
  }

  std::vector<Part> parts(std::size_t i) const override {
    std::vector<Part> parts = ExtentReader::parts(i);
    parts.front().xxh3 = digest(i);
    return parts;
  }

  bool can_view() const override { return whole_; }
  bool indexed() const override { return index_.stored(); }

  std::span<const std::byte> view(std::size_t i) const override {
    const std::span<const std::byte> payload = unchecked_view(i);
    check_digest(i, payload);
    return payload;
  }

  std::span<const std::byte> unchecked_view(std::size_t i) const override {
    if (pieces(number(i)) > 1)
      fail("{}: it is stored in {} pieces: use read()", file().where(extent(i).offset, i), pieces(i));
    return ExtentReader::view(i);
  }

  void read(std::size_t i, std::span<std::byte> into) const override {
    const Extent at = extent(number(i));
    check_buffer(i, at.offset, into.size(), at.bytes);
    std::span<std::byte> rest = into;
    for (std::size_t p = index_->first_part(i); p < index_->first_part(i + 1); ++p) {
      if (p > index_->first_part(i)) {
        std::copy_n(std::as_bytes(std::span(&kRecordMagic, 1)).begin(), sizeof(kRecordMagic), rest.begin());
        rest = rest.subspan(sizeof(kRecordMagic));
      }
      const layout::PartRecord& piece = index_->part(p);
      file().read(piece.offset, rest.first(piece.size), i);
      rest = rest.subspan(piece.size);
    }
    check_digest(i, into);
  }

  void verify(const ReadProgress& progress) const override {
    Stream stream(file(), progress);
    std::size_t i = 0;
    scan_([&] { return stream.next(); }, file().size(), file().path(),
          [&](const Record& record) {
            if (i >= size() || record.pieces.front().offset != extent(i).offset || record.xxh3 != digest(i))
              fail("{}: the record has changed since the file was indexed", file().where(record.begin, i));
            ++i;
          });
    if (i != size()) fail("{}: {} records, but {} when it was indexed", file().path().string(), i, size());
  }

 protected:
  Extent extent(std::size_t i) const override {
    const std::size_t first = index_->first_part(i);
    Extent extent{index_->part(first).offset, index_->part(first).size};
    for (std::size_t p = first + 1; p < index_->first_part(i + 1); ++p)
      extent.bytes += sizeof(kRecordMagic) + index_->part(p).size;
    return extent;
  }

 private:
  std::size_t pieces(std::size_t i) const { return index_->first_part(i + 1) - index_->first_part(i); }
  std::uint64_t digest(std::size_t i) const { return index_->part(index_->first_part(i)).xxh3; }

  void check_digest(std::size_t i, std::span<const std::byte> payload) const {
    if (check_digests_ && xxh3_64(payload) != digest(i)) {
      fail(
          "{}: the content has changed since the file was indexed: the file is damaged, or was changed and given its old time",
          file().where(extent(i).offset, i));
    }
  }

  SideIndex index_;
  Scan scan_;
  bool has_keys_;
  bool check_digests_;
  bool whole_;
};

}  // namespace

std::unique_ptr<Reader> open_tfrecord(const fs::path& folder, const std::string& file,
                                      const OpenOptions& options) {
  const DataFile data(folder / file);
  return std::make_unique<RecordReader>(folder, file, side_index(data, "tfrecord", scan_tfrecord, nullptr),
                                        scan_tfrecord, false, options.check_digests);
}

std::unique_ptr<Reader> open_recordio(const fs::path& folder, const std::string& file,
                                      const OpenOptions& options) {
  const DataFile data(folder / file);
  const std::optional<RecordioKeys> keys = RecordioKeys::beside(data.path());
  return std::make_unique<RecordReader>(folder, file,
                                        side_index(data, "recordio", scan_recordio, keys ? &*keys : nullptr),
                                        scan_recordio, keys.has_value(), options.check_digests);
}

}  // namespace lockstep::pack
