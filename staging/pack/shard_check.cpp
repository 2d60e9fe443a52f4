#include "staging/pack/shard_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kCheckBlock = std::size_t{1} << 20;

std::size_t read_some(int fd, std::span<std::byte> into, std::uint64_t offset, const fs::path& path) {
  const ssize_t got = read_at(fd, into, offset);
  if (got < 0) fail_errno("cannot read {} at offset {}", path.string(), offset);
  return static_cast<std::size_t>(got);
}

/// Compares the digests of a shard's parts, given the shard's bytes block by block.
class PartsInStream {
 public:
  PartsInStream(const fs::path& shard, const Index& index, std::size_t s)
      : shard_(shard),
        index_(index),
        sample_(index.first_sample(s)),
        part_(index.first_part(sample_)),
        end_(index.first_part(index.first_sample(s + 1))) {}

  void feed(std::span<const std::byte> block, std::uint64_t offset) {
    const std::uint64_t block_end = offset + block.size();
    while (part_ < end_) {
      const layout::PartRecord& part = index_.part(part_);
      const std::uint64_t begin = std::max(part.offset, offset);
      const std::uint64_t end = std::min(part.offset + part.size, block_end);
      if (part.offset > block_end) return;
      if (begin < end) hasher_.update(block.subspan(begin - offset, end - begin));
      if (part.offset + part.size > block_end) return;
      finish(part);
    }
  }

 private:
  void finish(const layout::PartRecord& part) {
    while (index_.first_part(sample_ + 1) <= part_) ++sample_;
    if (hasher_.value() != part.xxh3) {
      fail("{}: the content does not match its index (xxh3 {:016x}, {:016x} expected)",
           describe_part(shard_, index_, sample_, part), hasher_.value(), part.xxh3);
    }
    hasher_.reset();
    ++part_;
  }

  const fs::path& shard_;
  const Index& index_;
  Hasher hasher_{Hasher::Width::bits64};
  std::size_t sample_;
  std::size_t part_;
  std::size_t end_;
};

}  // namespace

std::string describe_part(const fs::path& shard, const Index& index, std::size_t sample,
                          const layout::PartRecord& part) {
  return fmt::format("{}, sample {} ({}), offset {}", shard.string(), sample,
                     join_member_name(index.key(sample), index.kind(part)), part.offset);
}

void check_digests(const fs::path& folder, const Index& index, std::size_t s,
                   const std::function<void(std::uint64_t)>& progress) {
  const fs::path shard = check_shard_size(folder, index, s);
  const UniqueFd fd = open_file(shard, O_RDONLY);
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  PartsInStream parts(shard, index, s);
  Hasher whole;
  std::vector<std::byte> buffer(kCheckBlock);
  std::uint64_t offset = 0;
  for (;;) {
    const std::size_t got = read_some(fd.get(), buffer, offset, shard);
    const auto block = std::span<const std::byte>(buffer).first(got);
    if (got == 0) break;
    whole.update(block);
    parts.feed(block, offset);
    offset += got;
    progress(got);
  }
  if (offset != index.shard(s).size)
    fail("{} changed while it was being read: {} bytes, {} expected", shard.string(), offset,
         index.shard(s).size);
  if (whole.digest() != index.shard(s).digest) {
    fail(
        "{} does not match its index: its samples are intact, but bytes between them differ (xxh3 {}, {} expected)",
        shard.string(), to_hex(whole.digest()), to_hex(index.shard(s).digest));
  }
}

void check_part(int fd, const fs::path& shard, const Index& index, std::size_t sample, std::size_t p) {
  const layout::PartRecord& part = index.part(p);
  Hasher hasher(Hasher::Width::bits64);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kCheckBlock, part.size));
  for (std::uint64_t done = 0; done < part.size;) {
    const auto want = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), part.size - done));
    const std::size_t got = read_some(fd, want, part.offset + done, shard);
    if (got == 0)
      fail("{}: the file ends before this sample does", describe_part(shard, index, sample, part));
    hasher.update(want.first(got));
    done += got;
  }
  if (hasher.value() != part.xxh3)
    fail("{}: the content does not match its index", describe_part(shard, index, sample, part));
}

void check_members(const fs::path& folder, const Index& index, std::size_t s) {
  const fs::path shard = check_shard_size(folder, index, s);
  TarMembers members(shard);
  const Members indexed = index.has_kind("") ? Members::all : Members::with_ending;
  const auto skipped = [&] { return members.folder() || is_left_out(members.name(), indexed); };
  for (std::size_t i = index.first_sample(s); i < index.first_sample(s + 1); ++i) {
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      do {
        if (!members.next())
          fail("{}: the shard ends before this sample", describe_part(shard, index, i, part));
      } while (skipped() && members.offset() != part.offset);  // in other programs' shards
      const std::string name = members.name();
      if (const std::string_view reason = unsafe_member_name(name); !reason.empty()) {
        fail("{}: member '{}' at offset {} {}", shard.string(), name, members.offset(), reason);
      }
      if (!members.not_plain().empty())
        fail("{}: member '{}' at offset {} {}", shard.string(), name, members.offset(), members.not_plain());
      if (name != join_member_name(index.key(i), index.kind(part)) || members.size() != part.size ||
          members.offset() != part.offset) {
        fail("{}: the shard has '{}' with {} bytes at offset {} instead",
             describe_part(shard, index, i, part), name, members.size(), members.offset());
      }
    }
  }
  while (members.next()) {
    if (skipped()) continue;
    fail("{}: member '{}' at offset {} is not in the index", shard.string(), members.name(),
         members.offset());
  }
}

}  // namespace lockstep::pack
