#include "staging/pack/write/packer.h"

#include <fcntl.h>

#include "common/error.h"
#include "staging/pack/member_name.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

constexpr std::uint64_t kEndOfArchive = 2 * kTarBlock;

}  // namespace

std::string shard_file_name(std::size_t number) {
  return fmt::format("shard-{:06}.tar", number);
}

std::uint64_t member_bytes(std::uint64_t payload) {
  return kTarBlock + to_tar_blocks(payload);
}

bool fits(std::uint64_t shard, std::uint64_t sample, std::uint64_t shard_bytes) {
  return shard - kEndOfArchive + sample <= shard_bytes;
}

Packer::Packer(Options options, Journal& journal, FileSystem& system)
    : options_(std::move(options)), journal_(journal), system_(system) {
}

void Packer::begin_sample(std::string_view key, std::uint64_t bytes) {
  if (shard_ && !fits(shard_->size() + kEndOfArchive, bytes, options_.shard_bytes)) end_shard();
  if (!shard_) begin_shard();
  key_ = key;
  kinds_.clear();
  index_->add_sample(key);
}

void Packer::begin_part(std::string_view kind, std::uint64_t size, std::int64_t changed_ns) {
  // The kinds of a damaged or hostile pack may be any text.
  std::string_view reason = unsafe_kind(kind);
  if (reason.empty()) reason = unsafe_member_name(join_member_name(key_, kind));
  if (reason.empty() && !kinds_.emplace(kind).second) reason = "appears twice";
  if (!reason.empty())
    fail("sample '{}': its part '{}' cannot be a file of a tar shard: the name {}", key_, kind, reason);
  kind_ = kind;
  size_ = size;
  offset_ = shard_->begin(join_member_name(key_, kind), size);
  changed_ns_.push_back(changed_ns);
}

void Packer::end_part(std::uint64_t xxh3) {
  index_->add_part(kind_, offset_, size_, xxh3);
}

void Packer::begin_shard() {
  const std::string name = shard_file_name(journal_.shards());
  shard_.emplace(options_.folder / name, system_);
  index_.emplace(options_.token_bytes);
  index_->begin_shard(name);
}

void Packer::end_shard() {
  shard_->finish();
  index_->end_shard(shard_->size(), shard_->digest());
  journal_.add(index_->finish(), changed_ns_);
  changed_ns_.clear();
  shard_.reset();
  index_.reset();
}

std::uint64_t write_index(const std::filesystem::path& file, int token_bytes, const Journal& journal,
                          FileSystem& system) {
  IndexBuilder index(token_bytes);
  journal.each([&](const Journal::Entry& entry) {
    const Index& shard = entry.index;
    index.begin_shard(std::string(shard.shard_name(0)));
    for (std::size_t i = 0; i < shard.samples(); ++i) {
      index.add_sample(shard.key(i));
      for (std::size_t p = shard.first_part(i); p < shard.first_part(i + 1); ++p) {
        const layout::PartRecord& part = shard.part(p);
        index.add_part(shard.kind(part), part.offset, part.size, part.xxh3);
      }
    }
    index.end_shard(shard.shard(0).size, shard.shard(0).digest);
  });
  const std::string bytes = index.finish();
  system.remove_all(file);
  const UniqueFd fd = system.open(file, O_WRONLY | O_CREAT | O_EXCL);
  system.write_at(fd.get(), std::as_bytes(std::span(bytes)), 0, file);
  system.sync(fd.get(), file);
  return bytes.size();
}

}  // namespace lockstep::pack
