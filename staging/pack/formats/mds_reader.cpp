// Reads the samples of MDS shards; the columns are the parts of a sample.

#include <openssl/evp.h>

#include <algorithm>

#include "common/error.h"
#include "common/leaf/text.h"
#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/mds_index.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

/// The type of "ndarray:uint16:2048": such a column holds these numbers only.
TokenType token_type_of(const std::vector<MdsColumn>& columns) {
  if (columns.size() != 1 || columns[0].size == 0) return TokenType::none;
  const std::string_view encoding = columns[0].encoding;
  const auto has = [&](std::string_view type) {
    return encoding.starts_with("ndarray:" + std::string(type) + ":");
  };
  constexpr std::pair<std::string_view, TokenType> kTypes[] = {
      {"uint8", TokenType::u8},   {"int8", TokenType::i8},    {"uint16", TokenType::u16},
      {"int16", TokenType::i16},  {"uint32", TokenType::u32}, {"int32", TokenType::i32},
      {"uint64", TokenType::u64}, {"int64", TokenType::i64}};
  for (const auto& [name, type] : kTypes) {
    if (has(name)) return type;
  }
  return TokenType::none;
}

class MdsReader : public ExtentReader {
 public:
  MdsReader(const fs::path& folder, std::string file_name, MdsShard shard)
      : ExtentReader(folder, std::move(file_name), shard.samples, token_type_of(shard.columns)),
        shard_(std::move(shard)),
        head_(mds_head_bytes(shard_.columns)),
        begins_(parse_mds_table(file().read_some(0, mds_table_bytes(shard_)), shard_, file().path())) {}

  std::vector<Part> parts(std::size_t i) const override {
    const std::vector<MdsPart> columns = columns_of(number(i));
    std::vector<Part> parts;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      parts.push_back({.kind = shard_.columns[c].name,
                       .bytes = columns[c].bytes,
                       .shard = name(),
                       .offset = begins_[i] + columns[c].offset,
                       .xxh3 = 0});
    }
    return parts;
  }

  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override {
    const std::vector<MdsPart> columns = columns_of(number(i));
    check_part(i, p, columns.size());
    const std::uint64_t offset = begins_[i] + columns[p].offset;
    check_buffer(i, offset, into.size(), columns[p].bytes);
    file().read(offset, into, i);
  }

  void verify(const ReadProgress& progress) const override {
    for (std::size_t i = 0; i < size(); ++i) columns_of(i);
    for (const auto& [algorithm, digits] : shard_.raw.hashes) check_hash(algorithm, digits, progress);
    if (!shard_.raw.hashes.empty()) return;
    read_whole_file(progress);
  }

 protected:
  /// The first column. It begins after the head; if it is the only column, it fills the rest of the sample.
  Extent extent(std::size_t i) const override {
    if (shard_.columns.size() == 1 && shard_.columns[0].size == 0) {
      const std::uint64_t bytes = begins_[i + 1] - begins_[i];
      if (bytes < head_) fail("{}: {} bytes are too few for a sample", file().where(begins_[i], i), bytes);
      return {begins_[i] + head_, bytes - head_};
    }
    const MdsPart first = columns_of(i).front();
    return {begins_[i] + first.offset, first.bytes};
  }

 private:
  std::vector<MdsPart> columns_of(std::size_t i) const {
    const std::uint64_t bytes = begins_[i + 1] - begins_[i];
    std::vector<std::byte> head(std::min(head_, bytes));
    file().read(begins_[i], head, i);
    std::vector<MdsPart> parts = parse_mds_sample(head, bytes, shard_.columns);
    if (parts.empty())
      fail("{}: its columns do not fill its {} bytes: the shard is damaged", file().where(begins_[i], i),
           bytes);
    return parts;
  }

  /// Checks hashes of the algorithms that OpenSSL has, and ignores others.
  void check_hash(const std::string& algorithm, const std::string& digits,
                  const ReadProgress& progress) const {
    const EVP_MD* method = EVP_get_digestbyname(algorithm.c_str());
    if (method == nullptr) return;
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
    if (EVP_DigestInit_ex(context.get(), method, nullptr) != 1) return;
    Stream stream(file(), progress);
    for (auto block = stream.next(); !block.empty(); block = stream.next())
      EVP_DigestUpdate(context.get(), block.data(), block.size());
    unsigned char value[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    EVP_DigestFinal_ex(context.get(), value, &length);
    const std::string found = lockstep::to_hex(std::as_bytes(std::span(value, length)));
    if (found != digits)
      fail("{}: its {} is {}, but its index.json says {}: the shard is damaged", file().path().string(),
           algorithm, found, digits);
  }

  MdsShard shard_;
  std::uint64_t head_;
  std::vector<std::uint32_t> begins_;
};

}  // namespace

std::unique_ptr<Reader> open_mds(const fs::path& folder, const std::string& index, const std::string& only) {
  const fs::path file = folder / index;
  const fs::path below = fs::path(index).parent_path();
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<std::string> names;
  for (MdsShard& shard : load_mds_index(file)) {
    std::string name = (below / shard.raw.name).string();
    if (shard.samples == 0 || (!only.empty() && name != only)) continue;
    check_mds_shard(file, shard);
    std::error_code error;
    if (!fs::exists(folder / name, error))
      fail("{} exists in compressed form only: unpack it (zstd -d, gunzip, …) beside its index.json",
           (folder / name).string());
    names.push_back(name);
    readers.push_back(std::make_unique<MdsReader>(folder, std::move(name), std::move(shard)));
  }
  if (readers.empty())
    fail("{}: {} no samples", file.string(), only.empty() ? "its shards hold" : only + " holds");
  return join(std::move(readers), names);
}

}  // namespace lockstep::pack
