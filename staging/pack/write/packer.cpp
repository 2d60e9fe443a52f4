#include "staging/pack/write/packer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "common/error.h"
#include "staging/pack/digest.h"
#include "staging/pack/member_name.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

constexpr std::uint64_t kEndOfArchive = 2 * kTarBlock;

constexpr const char* kPurpose = "purpose";

// A record: the size of the index in 8 bytes, the index, and the times of its parts.
Journal::Entry parse(std::string_view record, const std::filesystem::path& file) {
  std::uint64_t size = 0;
  if (record.size() >= sizeof(size)) std::memcpy(&size, record.data(), sizeof(size));
  if (record.size() < sizeof(size) || size > record.size() - sizeof(size))
    fail("{} is damaged", file.string());
  record.remove_prefix(sizeof(size));
  Journal::Entry entry{Index::parse(std::as_bytes(std::span(record.substr(0, size))), file), {}};
  record.remove_prefix(size);
  entry.changed_ns.resize(record.size() / sizeof(std::int64_t));
  if (entry.index.shards() != 1 || entry.index.parts() * sizeof(std::int64_t) != record.size())
    fail("{} is damaged", file.string());
  std::memcpy(entry.changed_ns.data(), record.data(), record.size());
  return entry;
}

}  // namespace

Journal::Journal(std::filesystem::path folder, std::string_view purpose, FileSystem& system)
    : folder_(std::move(folder)), system_(system) {
  if (const auto found = read(folder_ / kPurpose); found == purpose) {
    try {
      for (auto record = read(file(0)); record; record = read(file(shards_))) {
        (void)parse(*record, file(shards_));
        ++shards_;
      }
    } catch (const Error&) {
      keep(shards_);  // the shards from here on are packed again
    }
    return;
  } else {
    other_purpose_ = found.has_value();
  }
  system_.remove_all(folder_);
  (void)system_.make_folder(folder_, 0755);
  write(folder_ / kPurpose, purpose);
}

std::optional<std::string> Journal::read(const std::filesystem::path& file) const {
  const std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDONLY | O_NOFOLLOW);
  if (!fd) return std::nullopt;
  const std::optional<struct stat> status = system_.status(file);
  std::string content(status ? static_cast<std::size_t>(status->st_size) : 0, '\0');
  for (std::size_t done = 0; done < content.size();) {
    const auto rest = std::as_writable_bytes(std::span(content)).subspan(done);
    const std::size_t got = system_.read_at(fd->get(), rest, done, file);
    if (got == 0) fail("{} was truncated while it was being read", file.string());
    done += got;
  }
  return content;
}

void Journal::write(const std::filesystem::path& file, std::string_view content) {
  const std::filesystem::path part = file.string() + ".part";
  system_.remove_all(part);
  system_.write_file(part, content, 0644);
  system_.rename(part, file);
}

void Journal::add(std::string_view index, std::span<const std::int64_t> changed_ns) {
  const std::uint64_t size = index.size();
  std::string record(reinterpret_cast<const char*>(&size), sizeof(size));
  record += index;
  record.append(reinterpret_cast<const char*>(changed_ns.data()), changed_ns.size_bytes());
  write(file(shards_), record);
  ++shards_;
}

// The last record goes first, so that a killed call leaves the records of the first shards.
void Journal::keep(std::size_t shards) {
  std::size_t end = shards;
  while (system_.status(file(end))) ++end;
  while (end > shards) system_.unlink(file(--end));
  shards_ = std::min(shards_, shards);
}

void Journal::each(const std::function<void(const Entry&)>& use) const {
  for (std::size_t s = 0; s < shards_; ++s) {
    const std::optional<std::string> record = read(file(s));
    if (!record) fail("{} was removed while it was in use", file(s).string());
    use(parse(*record, file(s)));
  }
}

/// Writes one tar shard, member by member, and hashes it at the same time. All headers have time 0, owner 0 and mode 0644, so
/// the same input gives the same bytes.
class ShardWriter {
 public:
  /// Creates the file, which must not exist. Throws Error naming it.
  ShardWriter(std::filesystem::path path, FileSystem& system)
      : path_(std::move(path)), system_(system), fd_(system_.open(path_, O_WRONLY | O_CREAT | O_EXCL)) {
    buffer_.reserve(kBuffer);
    archive* writer = archive_.get();
    // GNU's format keeps names as bytes in any locale, and allows long names and payloads over 8 GiB.
    archive_write_set_format_gnutar(writer);
    archive_write_set_bytes_per_block(writer, 0);  // emit() gets every byte at once, so offsets are exact
    archive_write_set_bytes_in_last_block(writer, 1);
    const auto emit_from_c = [](archive* from, void* self, const void* bytes,
                                std::size_t count) -> la_ssize_t {
      auto* shard = static_cast<ShardWriter*>(self);
      if (shard->abandoned_) return -1;
      try {
        shard->emit({static_cast<const std::byte*>(bytes), count});
      } catch (const std::exception& error) {  // no exception may cross libarchive's frames
        shard->failure_ = error.what();
        archive_set_error(from, EIO, "write failed");
        return -1;
      }
      return static_cast<la_ssize_t>(count);
    };
    check(archive_write_open(writer, this, nullptr, emit_from_c, nullptr));
  }
  ~ShardWriter() {
    abandoned_ = true;  // otherwise freeing an unfinished archive would write its end
  }
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Begins a member of exactly `size` bytes and returns the offset of its payload in the shard.
  std::uint64_t begin(const std::string& name, std::uint64_t size) {
    archive_entry* entry = archive_entry_clear(entry_.get());
    archive_entry_copy_pathname(entry, name.c_str());
    archive_entry_set_size(entry, static_cast<std::int64_t>(size));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_mtime(entry, 0, 0);
    archive_entry_set_uid(entry, 0);
    archive_entry_set_gid(entry, 0);
    check(archive_write_header(archive_.get(), entry));
    return size_;
  }

  void write(std::span<const std::byte> payload) {
    if (payload.empty()) return;
    const la_ssize_t put = archive_write_data(archive_.get(), payload.data(), payload.size());
    check(put);
    if (static_cast<std::size_t>(put) != payload.size())
      fail("{}: a member is longer than its header says", path_.string());
  }

  /// Ends the archive and syncs the file. After that size() and digest() are final.
  void finish() {
    check(archive_write_close(archive_.get()));
    flush();
    system_.sync(fd_.get(), path_);
  }

  /// Bytes so far.
  std::uint64_t size() const { return size_; }
  Digest digest() const { return hasher_.digest(); }

 private:
  void check(std::int64_t code) {
    if (code >= ARCHIVE_OK) return;
    if (!failure_.empty()) throw Error(failure_);
    fail("cannot write {}: {}", path_.string(), archive_error_string(archive_.get()));
  }

  void emit(std::span<const std::byte> bytes) {
    size_ += bytes.size();
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() >= kBuffer) {
      put(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }

  void flush() {
    put(buffer_);
    buffer_.clear();
  }

  void put(std::span<const std::byte> bytes) {
    hasher_.update(bytes);  // large pieces are several times faster than header by header
    system_.write_at(fd_.get(), bytes, written_, path_);
    written_ += bytes.size();
  }

  static constexpr std::size_t kBuffer = std::size_t{1} << 20U;

  std::filesystem::path path_;
  FileSystem& system_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;  // size_ without the bytes in the buffer
  std::string failure_;
  bool abandoned_ = false;
  std::uint64_t size_ = 0;
  Hasher hasher_;
  std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry_{archive_entry_new(), archive_entry_free};
  std::unique_ptr<archive, int (*)(archive*)> archive_{archive_write_new(), archive_write_free};
};

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

Packer::~Packer() = default;

void Packer::write(std::span<const std::byte> payload) {
  shard_->write(payload);
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
  shard_ = std::make_unique<ShardWriter>(options_.folder / name, system_);
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
  journal.each([&](const Journal::Entry& entry) { index.add_shard(entry.index, 0); });
  const std::string bytes = index.finish();
  system.remove_all(file);
  const UniqueFd fd = system.open(file, O_WRONLY | O_CREAT | O_EXCL);
  system.write_at(fd.get(), std::as_bytes(std::span(bytes)), 0, file);
  system.sync(fd.get(), file);
  return bytes.size();
}

}  // namespace lockstep::pack
