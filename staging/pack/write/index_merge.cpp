#include "staging/pack/write/index_merge.h"

#include <map>
#include <string>
#include <vector>

#include "staging/pack/index_builder.h"

namespace lockstep::pack {
namespace {

/// Collects tables into large blocks, hashes them and passes them on.
class TableWriter {
 public:
  explicit TableWriter(const std::function<void(std::span<const std::byte>)>& sink) : sink_(sink) {
    buffer_.reserve(kBlock);
  }

  void add(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBlock) flush();
    if (bytes.size() > kBlock) {
      give(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  template <typename T>
  void add(const T& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  void finish() {
    flush();
    const Digest digest = hasher_.digest();
    sink_(std::as_bytes(std::span(digest)));
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 20;

  void flush() {
    give(buffer_);
    buffer_.clear();
  }
  void give(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    hasher_.update(bytes);
    sink_(bytes);
  }

  const std::function<void(std::span<const std::byte>)>& sink_;
  std::vector<std::byte> buffer_;
  Hasher hasher_;
};

/// The small tables, which are kept in memory: everything but samples and parts.
struct Outline {
  std::vector<layout::ShardRecord> shards;
  std::vector<std::string> shard_names;
  std::map<std::string, std::uint32_t, std::less<>> kind_numbers;
  std::vector<std::string> kinds;
  std::uint64_t samples = 0;
  std::uint64_t parts = 0;
  std::uint64_t key_bytes = 0;

  void add(const Index& piece) {
    for (std::size_t s = 0; s < piece.shards(); ++s) {
      shards.push_back(piece.shard(s));
      shards.back().first_sample += samples;
      shard_names.emplace_back(piece.shard_name(s));
    }
    for (std::size_t i = 0; i < piece.samples(); ++i) key_bytes += piece.key(i).size();
    for (std::size_t p = 0; p < piece.parts(); ++p) {
      const std::string_view kind = piece.kind(piece.part(p));
      if (kind_numbers.find(kind) != kind_numbers.end()) continue;
      kind_numbers.emplace(kind, static_cast<std::uint32_t>(kinds.size()));
      kinds.emplace_back(kind);
    }
    samples += piece.samples();
    parts += piece.parts();
  }

  std::uint64_t name_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto* group : {&shard_names, &kinds})
      for (const std::string& name : *group) bytes += name.size();
    return bytes;
  }
};

void add_parts(const Outline& outline, const IndexPieces& pieces, TableWriter& tables) {
  std::uint32_t shards = 0;
  pieces([&](const Index& piece) {
    for (std::size_t p = 0; p < piece.parts(); ++p) {
      layout::PartRecord part = piece.part(p);
      part.kind = outline.kind_numbers.find(piece.kind(part))->second;
      part.shard += shards;
      tables.add(part);
    }
    shards += static_cast<std::uint32_t>(piece.shards());
  });
}

void add_names(const Outline& outline, const IndexPieces& pieces, TableWriter& tables) {
  std::uint64_t end = 0;
  tables.add(end);
  for (const auto* group : {&outline.shard_names, &outline.kinds})
    for (const std::string& name : *group) tables.add(end += name.size());
  pieces([&](const Index& piece) {
    for (std::size_t i = 0; i < piece.samples(); ++i) tables.add(end += piece.key(i).size());
  });
  for (const auto* group : {&outline.shard_names, &outline.kinds})
    for (const std::string& name : *group) tables.add(std::string_view(name));
  pieces([&](const Index& piece) {
    for (std::size_t i = 0; i < piece.samples(); ++i) tables.add(piece.key(i));
  });
}

}  // namespace

void merge_indexes(int token_bytes, const IndexPieces& pieces,
                   const std::function<void(std::span<const std::byte>)>& sink) {
  Outline outline;
  pieces([&](const Index& piece) { outline.add(piece); });
  TableWriter tables(sink);
  tables.add(make_header(token_bytes, outline.kinds.size(), outline.shards.size(), outline.samples,
                         outline.parts, outline.name_bytes() + outline.key_bytes));
  for (const layout::ShardRecord& shard : outline.shards) tables.add(shard);
  std::uint64_t parts = 0;
  pieces([&](const Index& piece) {
    for (std::size_t i = 0; i < piece.samples(); ++i) tables.add(parts + piece.first_part(i));
    parts += piece.parts();
  });
  tables.add(parts);
  add_parts(outline, pieces, tables);
  add_names(outline, pieces, tables);
  tables.finish();
}

}  // namespace lockstep::pack
