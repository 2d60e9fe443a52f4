#include "staging/pack/index.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <span>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

using layout::Header;
using layout::PartRecord;
using layout::ShardRecord;

template <typename... Args>
[[noreturn]] void damaged(const std::filesystem::path& file, fmt::format_string<Args...> format,
                          Args&&... args) {
  fail("{}: damaged index: {}: pack the data again", file.string(),
       fmt::format(format, std::forward<Args>(args)...));
}

/// Takes tables from the front of the bytes, and checks that each is complete.
class TableReader {
 public:
  TableReader(std::span<const std::byte> rest, const std::filesystem::path& file)
      : rest_(rest), file_(file) {}

  template <typename T>
  std::span<const T> take(std::uint64_t count, const char* what) {
    if (count > rest_.size() / sizeof(T)) damaged(file_, "the file is too short for {} {}", count, what);
    const std::span<const T> table(reinterpret_cast<const T*>(rest_.data()), count);
    rest_ = rest_.subspan(count * sizeof(T));
    return table;
  }

  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const std::filesystem::path& file_;
};

void check_header(const Header& header, std::size_t file_bytes, const std::filesystem::path& file) {
  if (std::memcmp(header.magic, layout::kMagic, sizeof(header.magic)) != 0)
    fail("{}: not an index of packed data", file.string());
  if (header.version != layout::kVersion || header.header_bytes != sizeof(Header)) {
    fail("{}: index version {} is not supported, this program reads version {}", file.string(),
         header.version, layout::kVersion);
  }
  if (header.file_bytes != file_bytes) {
    damaged(file, "it has {} bytes, {} expected", file_bytes, header.file_bytes);
  }
}

}  // namespace

Index Index::load(const std::filesystem::path& file, const std::filesystem::path& shown) {
  const UniqueFd fd = open_file(file, O_RDONLY);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", file.string());
  MappedFile mapping(fd.get(), static_cast<std::size_t>(status.st_size), file);
  Index index = parse(mapping.bytes(), shown.empty() ? file : shown);
  index.mapping_ = std::move(mapping);
  return index;
}

Index Index::parse(std::span<const std::byte> bytes, const std::filesystem::path& name) {
  if (bytes.size() < sizeof(Header) + sizeof(Digest)) damaged(name, "it has only {} bytes", bytes.size());
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  check_header(header, bytes.size(), name);

  Index index;
  index.file_ = name;
  index.bytes_ = bytes;
  if (digest_of(bytes.first(bytes.size() - sizeof(Digest))) != index.digest())
    damaged(name, "its checksum does not match");

  TableReader tables(bytes.subspan(sizeof(Header), bytes.size() - sizeof(Header) - sizeof(Digest)), name);
  constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 48;  // so that the sums below cannot overflow
  if (header.shards > kMaxCount || header.samples > kMaxCount) damaged(name, "impossible counts");
  index.token_bytes_ = static_cast<int>(header.token_bytes);
  index.kinds_ = header.kinds;
  index.shards_ = tables.take<ShardRecord>(header.shards, "shards");
  index.first_part_ = tables.take<std::uint64_t>(header.samples + 1, "samples");
  index.parts_ = tables.take<PartRecord>(header.parts, "parts");
  index.string_begin_ =
      tables.take<std::uint64_t>(header.shards + header.kinds + header.samples + 1, "names");
  const auto strings = tables.take<char>(header.string_bytes, "bytes of names");
  index.strings_ = {strings.data(), strings.size()};
  if (tables.left() != 0) damaged(name, "{} bytes are left over", tables.left());

  if (header.samples == 0) fail("{}: the pack holds no samples", name.string());
  if (header.token_bytes != 0 && header.token_bytes != 2 && header.token_bytes != 4) {
    damaged(name, "the token size is {}, and must be 0, 2 or 4", header.token_bytes);
  }
  index.check_strings();
  index.check_shards();
  index.check_parts();
  return index;
}

Digest Index::digest() const {
  Digest digest;
  std::memcpy(digest.data(), bytes_.last(sizeof(Digest)).data(), sizeof(Digest));
  return digest;
}

void Index::check_strings() const {
  if (string_begin_.front() != 0 || string_begin_.back() != strings_.size())
    damaged(file_, "the names do not fill their table");
  for (std::size_t n = 1; n < string_begin_.size(); ++n) {
    if (string_begin_[n] < string_begin_[n - 1] || string_begin_[n] > strings_.size()) {
      damaged(file_, "name {} has a negative length", n - 1);
    }
  }
  for (std::size_t s = 0; s < shards(); ++s) {
    const std::string_view name = shard_name(s);
    const std::string_view reason = unsafe_member_name(name);
    if (!reason.empty()) damaged(file_, "the name of shard {} {}", s, reason);
    if (name.find('/') != std::string_view::npos || name == kIndexName) {
      damaged(file_, "shard {} is named '{}', which is not a file in the pack's folder", s, name);
    }
  }
  for (std::size_t k = 0; k < kinds_; ++k) {
    const std::string_view reason = unsafe_kind(string(shards() + k));
    if (!reason.empty()) damaged(file_, "kind {} {}", k, reason);
  }
  for (std::size_t i = 0; i < samples(); ++i) {
    std::string_view name = key(i);
    if (name.ends_with('/')) name.remove_suffix(1);  // of hidden files: "d/" of "d/.a"
    const std::string_view reason = unsafe_member_name(name);
    if (!reason.empty()) damaged(file_, "the key of sample {} {}", i, reason);
  }
}

void Index::check_shards() const {
  for (std::size_t s = 0; s < shards(); ++s) {
    const std::uint64_t previous = s == 0 ? 0 : shards_[s - 1].first_sample + 1;
    const bool follows = s == 0 ? shards_[s].first_sample == 0 : shards_[s].first_sample >= previous;
    if (!follows || shards_[s].first_sample >= samples())
      damaged(file_, "shard {} ({}) holds no samples", s, shard_name(s));
  }
}

void Index::check_parts() const {
  if (shards() == 0) damaged(file_, "it has samples but no shards");
  if (first_part_.front() != 0 || first_part_.back() != parts_.size())
    damaged(file_, "the parts do not fill their table");
  std::uint64_t end = 0;
  for (std::size_t s = 0; s < shards(); ++s) {
    end = 0;
    for (std::size_t i = first_sample(s); i < first_sample(s + 1); ++i) {
      if (first_part_[i + 1] <= first_part_[i] || first_part_[i + 1] > parts_.size()) {
        damaged(file_, "sample {} ({}) has no parts", i, key(i));
      }
      for (std::size_t p = first_part_[i]; p < first_part_[i + 1]; ++p) {
        const PartRecord& part = parts_[p];
        const auto where = [&] {
          return fmt::format("shard {}, sample {} ({}), offset {}", shard_name(s), i, key(i), part.offset);
        };
        if (part.shard != s || part.kind >= kinds_) damaged(file_, "{}: no such shard or kind", where());
        if (part.offset < end || part.offset > shards_[s].size || part.size > shards_[s].size - part.offset) {
          damaged(file_, "{}: {} bytes are outside the shard's {} or overlap", where(), part.size,
                  shards_[s].size);
        }
        if (token_bytes_ != 0 && part.size % static_cast<unsigned>(token_bytes_) != 0) {
          damaged(file_, "{}: {} bytes are not a multiple of the token size, {}", where(), part.size,
                  token_bytes_);
        }
        end = part.offset + part.size;
      }
    }
  }
}

std::size_t Index::find_shard(std::string_view name) const {
  std::size_t s = 0;
  while (s < shards() && shard_name(s) != name) ++s;
  return s;
}

bool Index::has_kind(std::string_view kind) const {
  std::size_t k = 0;
  while (k < kinds_ && string(shards() + k) != kind) ++k;
  return k < kinds_;
}

std::string Index::fingerprint(std::size_t begin, std::size_t end) const {
  Hasher hasher;
  const auto add_number = [&](std::uint64_t number) { hasher.update(std::as_bytes(std::span(&number, 1))); };
  const auto add_text = [&](std::string_view text) {
    add_number(text.size());
    hasher.update(std::as_bytes(std::span(text)));
  };
  add_number(static_cast<std::uint64_t>(token_bytes_));
  for (std::size_t i = begin; i < end; ++i) {
    add_text(key(i));
    add_number(first_part(i + 1) - first_part(i));
    for (std::size_t p = first_part(i); p < first_part(i + 1); ++p) {
      add_text(kind(parts_[p]));
      add_number(parts_[p].size);
      add_number(parts_[p].xxh3);
    }
  }
  return to_hex(hasher.digest());
}

std::string Index::subset(const std::vector<std::size_t>& shards) const {
  IndexBuilder builder(token_bytes_);
  for (const std::size_t s : shards) builder.add_shard(*this, s);
  return builder.finish();
}

namespace {

template <typename T>
void append(std::string& bytes, std::span<const T> table) {
  bytes.append(reinterpret_cast<const char*>(table.data()), table.size_bytes());
}

/// The header of an index with these counts.
layout::Header make_header(int token_bytes, std::size_t kinds, std::size_t shards, std::size_t samples,
                           std::size_t parts, std::uint64_t string_bytes) {
  layout::Header header{};
  std::memcpy(header.magic, layout::kMagic, sizeof(header.magic));
  header.version = layout::kVersion;
  header.header_bytes = sizeof(header);
  header.token_bytes = static_cast<std::uint32_t>(token_bytes);
  header.kinds = static_cast<std::uint32_t>(kinds);
  header.shards = shards;
  header.samples = samples;
  header.parts = parts;
  header.string_bytes = string_bytes;
  header.file_bytes = sizeof(header) + shards * sizeof(layout::ShardRecord) +
                      (samples + 1) * sizeof(std::uint64_t) + parts * sizeof(layout::PartRecord) +
                      (shards + kinds + samples + 1) * sizeof(std::uint64_t) + string_bytes + sizeof(Digest);
  return header;
}

}  // namespace

void IndexBuilder::begin_shard(std::string name) {
  shard_names_.push_back(std::move(name));
  shards_.push_back({.size = 0, .first_sample = samples(), .digest = {}});
}

void IndexBuilder::add_sample(std::string_view key) {
  keys_.append(key);
  key_end_.push_back(keys_.size());
  first_part_.push_back(parts_.size());
}

void IndexBuilder::add_part(std::string_view kind, std::uint64_t offset, std::uint64_t size,
                            std::uint64_t xxh3) {
  parts_.push_back({.offset = offset,
                    .size = size,
                    .xxh3 = xxh3,
                    .shard = static_cast<std::uint32_t>(shards_.size() - 1),
                    .kind = kind_number(kind)});
}

void IndexBuilder::end_shard(std::uint64_t size, const Digest& digest) {
  shards_.back().size = size;
  shards_.back().digest = digest;
}

void IndexBuilder::add_shard(const Index& index, std::size_t s) {
  begin_shard(std::string(index.shard_name(s)));
  for (std::size_t i = index.first_sample(s); i < index.first_sample(s + 1); ++i) {
    add_sample(index.key(i));
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      add_part(index.kind(part), part.offset, part.size, part.xxh3);
    }
  }
  end_shard(index.shard(s).size, index.shard(s).digest);
}

void IndexBuilder::remove_empty_shard() {
  shard_names_.pop_back();
  shards_.pop_back();
}

std::uint32_t IndexBuilder::kind_number(std::string_view kind) {
  const auto known = kind_numbers_.find(kind);
  if (known != kind_numbers_.end()) return known->second;
  const auto number = static_cast<std::uint32_t>(kinds_.size());
  kinds_.emplace_back(kind);
  kind_numbers_.emplace(kind, number);
  return number;
}

std::string IndexBuilder::finish() const {
  std::string names;
  std::vector<std::uint64_t> begins;
  begins.reserve(shard_names_.size() + kinds_.size() + key_end_.size() + 1);
  begins.push_back(0);
  for (const auto* group : {&shard_names_, &kinds_}) {
    for (const std::string& name : *group) {
      names += name;
      begins.push_back(names.size());
    }
  }
  for (const std::uint64_t end : key_end_) begins.push_back(names.size() + end);

  const layout::Header header = make_header(token_bytes_, kinds_.size(), shards_.size(), samples(),
                                            parts_.size(), names.size() + keys_.size());
  std::string bytes;
  bytes.reserve(header.file_bytes);
  append(bytes, std::span<const layout::Header>(&header, 1));
  append(bytes, std::span<const layout::ShardRecord>(shards_));
  append(bytes, std::span<const std::uint64_t>(first_part_));
  const std::uint64_t all_parts = parts_.size();
  append(bytes, std::span<const std::uint64_t>(&all_parts, 1));
  append(bytes, std::span<const layout::PartRecord>(parts_));
  append(bytes, std::span<const std::uint64_t>(begins));
  bytes += names;
  bytes += keys_;
  const Digest digest = digest_of(std::as_bytes(std::span(bytes)));
  append(bytes, std::span<const std::uint8_t>(digest));
  return bytes;
}

}  // namespace lockstep::pack
