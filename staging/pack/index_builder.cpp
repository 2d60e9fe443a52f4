#include "staging/pack/index_builder.h"

#include <cstring>
#include <span>

namespace lockstep::pack {
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
