// The reader of our own format: tar shards with an index beside them.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "staging/pack/digest.h"
#include "staging/pack/formats/format_readers.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/reader.h"
#include "staging/pack/shard_check.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxShown = 60;

using Kinds = std::set<std::string>;

std::string shown(const Kinds& kinds) {
  std::string text;
  for (const std::string& kind : kinds) {
    if (!text.empty()) text += ", ";
    text += kind.empty() ? "no ending" : printable(kind, kMaxShown);
  }
  return printable(text, 2 * kMaxShown);
}

struct Group {
  std::size_t samples = 0;
  std::size_t first = 0;
};

/// "3 of 100 samples have other parts than the others (cls, jpg): the first is 'a' (jpg)", for samples begin to end; "" if all
/// have the same. As in WebDataset, "JPG" is "jpg". Files of other data that share a name up to the first dot become one
/// sample, and a lost file leaves a sample without a part.
std::string describe_unequal_parts(const Index& index, std::size_t begin, std::size_t end) {
  // By the numbers of the kinds first, as most samples have the same ones.
  std::map<std::set<std::uint32_t>, Group> by_number;
  std::map<std::uint32_t, std::string> names;
  for (std::size_t i = begin; i < end; ++i) {
    std::set<std::uint32_t> numbers;
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      numbers.insert(part.kind);
      if (names.find(part.kind) == names.end()) names[part.kind] = lower_case(index.kind(part));
    }
    const auto [found, added] = by_number.try_emplace(std::move(numbers), Group{.samples = 0, .first = i});
    ++found->second.samples;
  }
  std::map<Kinds, Group> groups;
  for (const auto& [numbers, group] : by_number) {
    Kinds kinds;
    for (const std::uint32_t number : numbers) kinds.insert(names[number]);
    const auto [found, added] = groups.try_emplace(std::move(kinds), group);
    if (added) continue;
    found->second.samples += group.samples;
    found->second.first = std::min(found->second.first, group.first);
  }
  if (groups.size() < 2) return {};
  const auto most = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    if (a.second.samples != b.second.samples) return a.second.samples < b.second.samples;
    return a.second.first > b.second.first;
  });
  auto first = groups.end();
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    if (group != most && (first == groups.end() || group->second.first < first->second.first)) first = group;
  }
  return fmt::format("{} of {} samples have other parts than the others ({}): the first is '{}' ({})",
                     end - begin - most->second.samples, end - begin, shown(most->first),
                     printable(index.key(first->second.first), kMaxShown), shown(first->first));
}

/// A shard, opened by the first read and mapped by the first view: a job uses only some of thousands of
/// shards.
struct Shard {
  std::once_flag opened;
  std::once_flag mapped;
  UniqueFd fd;
  MappedFile mapping;
};

class TarReader : public Reader {
 public:
  TarReader(Located located, bool check_digests)
      : check_digests_(check_digests),
        folder_(std::move(located.folder)),
        index_(std::move(located.index)),
        first_shard_(located.shard.value_or(0)),
        end_shard_(located.shard ? *located.shard + 1 : index_.shards()),
        begin_(index_.first_sample(first_shard_)),
        end_(index_.first_sample(end_shard_)),
        shards_(index_.shards()) {
    for (std::size_t s = first_shard_; s < end_shard_; ++s) check_shard_size(folder_, index_, s);
  }

  std::size_t size() const override { return end_ - begin_; }
  std::uint64_t bytes(std::size_t i) const override { return record(i, 0).size; }
  std::uint64_t tokens(std::size_t i) const override {
    return token_bytes() == 0 ? 0 : bytes(i) / static_cast<unsigned>(token_bytes());
  }
  int token_bytes() const override { return index_.token_bytes(); }
  std::string_view key(std::size_t i) const override { return index_.key(number(i)); }
  void read(std::size_t i, std::span<std::byte> into) const override { read_part(i, 0, into); }

  std::span<const std::byte> view(std::size_t i) const override {
    const std::span<const std::byte> payload = unchecked_view(i);
    check_digest(i, record(i, 0), payload);
    return payload;
  }

  std::span<const std::byte> unchecked_view(std::size_t i) const override {
    const layout::PartRecord& part = record(i, 0);
    Shard& shard = opened(part.shard);
    std::call_once(shard.mapped, [&] {
      shard.mapping = MappedFile(shard.fd.get(), index_.shard(part.shard).size, path(part.shard));
    });
    return shard.mapping.bytes().subspan(part.offset, part.size);
  }

  bool safe_to_map() const override {
    for (std::size_t s = first_shard_; s < end_shard_; ++s) {
      if (!pack::safe_to_map(path(s))) return false;
    }
    return true;
  }

  std::vector<Part> parts(std::size_t i) const override {
    const std::size_t sample = number(i);
    std::vector<Part> parts;
    for (std::size_t p = index_.first_part(sample); p < index_.first_part(sample + 1); ++p) {
      const layout::PartRecord& part = index_.part(p);
      parts.push_back({.kind = std::string(index_.kind(part)),
                       .bytes = part.size,
                       .shard = std::string(index_.shard_name(part.shard)),
                       .offset = part.offset,
                       .xxh3 = part.xxh3});
    }
    return parts;
  }

  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override {
    const layout::PartRecord& part = record(i, p);
    if (into.size() != part.size) {
      fail("{}: the buffer has {} bytes, the sample has {}", where(i, part), into.size(), part.size);
    }
    const ssize_t got = read_at(opened(part.shard).fd.get(), into, part.offset);
    if (got < 0) fail_errno("cannot read {}", where(i, part));
    if (static_cast<std::size_t>(got) < into.size())
      fail("{}: the shard was truncated while in use", where(i, part));
    check_digest(i, part, into);
  }

  std::string fingerprint() const override { return index_.fingerprint(begin_, end_); }

  std::vector<std::string> notes() const override {
    std::vector<std::string> notes = Reader::notes();
    if (std::string unequal = describe_unequal_parts(index_, begin_, end_); !unequal.empty())
      notes.push_back(std::move(unequal));
    for (std::size_t s = first_shard_; s < end_shard_; ++s) {
      const std::uint64_t bytes = bytes_after_end(s);
      if (bytes > 0) notes.push_back(describe_bytes_after_end(index_.shard_name(s), bytes));
    }
    return notes;
  }

  void verify(const ReadProgress& progress) const override {
    for (std::size_t s = first_shard_; s < end_shard_; ++s) {
      check_digests(folder_, index_, s, progress);
      check_members(folder_, index_, s);
    }
  }

 private:
  /// The number in the index of this reader's sample i.
  std::size_t number(std::size_t i) const {
    if (i >= size()) fail("{}: there is no sample {}, only {} samples", index_.file().string(), i, size());
    return begin_ + i;
  }

  const layout::PartRecord& record(std::size_t i, std::size_t p) const {
    const std::size_t sample = number(i);
    const std::size_t count = index_.first_part(sample + 1) - index_.first_part(sample);
    if (p >= count) fail("{}: sample {} has no part {}, only {} parts", index_.file().string(), i, p, count);
    return index_.part(index_.first_part(sample) + p);
  }

  /// Only what follows the last sample is read.
  std::uint64_t bytes_after_end(std::size_t s) const {
    const layout::PartRecord& last = index_.part(index_.first_part(index_.first_sample(s + 1)) - 1);
    TarMembers rest(path(s), to_tar_blocks(last.offset + last.size));
    while (rest.next()) {
    }
    return rest.bytes_after_end();
  }

  fs::path path(std::size_t s) const { return folder_ / index_.shard_name(s); }

  std::string where(std::size_t i, const layout::PartRecord& part) const {
    return fmt::format("{}, sample {} ({}), offset {}", path(part.shard).string(), i, key(i), part.offset);
  }

  void check_digest(std::size_t i, const layout::PartRecord& part, std::span<const std::byte> payload) const {
    if (check_digests_ && xxh3_64(payload) != part.xxh3) {
      fail("{}: the content does not match its index: the shard is damaged or was changed; restore it",
           where(i, part));
    }
  }

  Shard& opened(std::size_t s) const {
    Shard& shard = shards_[s];
    std::call_once(shard.opened,
                   [&] { shard.fd = open_file(check_shard_size(folder_, index_, s), O_RDONLY); });
    return shard;
  }

  bool check_digests_;
  fs::path folder_;
  Index index_;
  std::size_t first_shard_;
  std::size_t end_shard_;
  std::size_t begin_;
  std::size_t end_;
  mutable std::vector<Shard> shards_;
};

}  // namespace

std::unique_ptr<Reader> open_tar(const fs::path& source, const OpenOptions& options) {
  return std::make_unique<TarReader>(locate(source), options.check_digests);
}

}  // namespace lockstep::pack
